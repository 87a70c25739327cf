"""What cached token ids depend on, besides the text and the vocabulary."""

import hashlib
import unicodedata
from functools import cache
from importlib import resources

import tokenizers as tokenizers_package


@cache
def code_version() -> list[str]:
    """What the ids depend on besides text and vocabulary: our code, `tokenizers`, Python's Unicode."""
    modules = sorted(resources.files("regard.text").iterdir(), key=lambda file: file.name)
    sources = b"".join(file.read_bytes() for file in modules if file.name.endswith(".py"))
    versions = [tokenizers_package.__version__, unicodedata.unidata_version]
    return [hashlib.sha256(sources).hexdigest(), *versions]
