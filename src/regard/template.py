"""HTML pages from templates, each with a content-security policy."""

import base64
import hashlib
import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
# The code of a template. An element with a type, as application/json, holds data, which is not run.
CODE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)

PICTURES_BESIDE = "'self' file:"  # a page that is opened from a disk has no origin


def fill(template: str, parts: Mapping[str, str], **sources: str) -> str:
    """The page: the template with a part for each {{name}}, and for {{policy}} what it may load and run.

    That is the scripts and styles of the template, by their hashes, so that nothing within another part can
    run; and `sources`, as in img_src="data:". Nothing else is loaded from anywhere.
    """
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, code in CODE.findall(template):
        allowed[kind].append(source_hash(substitute(code, parts)))
    rules = {"default-src": "'none'"}
    rules |= {f"{kind}-src": " ".join(hashes) for kind, hashes in allowed.items() if hashes}
    rules |= {name.replace("_", "-"): source for name, source in sources.items()}
    rules |= {"base-uri": "'none'", "form-action": "'none'"}
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    return substitute(template, {**parts, "policy": policy})


def substitute(template: str, parts: Mapping[str, str]) -> str:
    # A single pass, so that a placeholder inside a part is not substituted.
    return PLACEHOLDER.sub(lambda match: parts[match[1]], template)


def source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
