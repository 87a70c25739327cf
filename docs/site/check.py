"""The finished site: every link, anchor and picture is there, and nothing is loaded from elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"src", "srcset", "poster"}  # what a browser loads by itself, of any element


class Page(HTMLParser):
    """The ids of a page, where it leads, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name in ("id", "name"):
                self.ids.add(value)
            elif name in LOADED or (tag == "link" and name == "href"):
                self.loads.append(value)
            elif name == "href":
                self.links.append(value)


def check_site(folder: Path) -> tuple[dict[str, int], list[str]]:
    """How much was checked, and every fault."""
    pages = {
        path: Page(path) for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts
    }
    made = folder / "made"  # files that the tool wrote: one program each, without links
    faults: list[str] = []
    counts = dict.fromkeys(("pages", "links", "anchors", "pictures and styles"), 0)
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        counts["pages"] += 1
        for target in page.loads:
            counts["pictures and styles"] += 1
            parts = urlsplit(target)
            if parts.scheme not in ("", "data") or parts.netloc:
                faults.append(f"{name} loads {target} from elsewhere")
            elif not parts.scheme and not (path.parent / unquote(parts.path)).exists():
                faults.append(f"{name} loads {target}, which is not there")
        if path.is_relative_to(made):
            continue
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            counts["links"] += 1
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not found.exists():
                faults.append(f"{name} links to {target}, which is not there")
            elif parts.fragment:
                counts["anchors"] += 1
                other = pages.get(found)
                if other is not None and unquote(parts.fragment) not in other.ids:
                    faults.append(f"{name} links to {target}, which has no such anchor")
    return counts, faults
