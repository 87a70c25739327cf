"""The source folder of the site, `build/site-source`: our Markdown files, and pages that are generated.

Nothing generated is in the repository. The folder `docs/` becomes the root of the site; `results/` keeps its
name, notebooks of `examples/` are in `notebooks/`. A link from page to page is rewritten accordingly; a link
to any other file of the repository leads to a page that shows it (code) or is a download (data).
"""

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from docs.site import contents, inserts, reference

ROOT = Path(__file__).parents[2]
PLAIN = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SHOWN = {".py": "python", ".toml": "toml", ".cff": "yaml", ".yaml": "yaml", "": "text"}
LINK = re.compile(r"(?<!\\)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r'(src|srcset)="([^":]+)"')
PICTURE = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'<img alt="([^"]*)" src="([^"]+)"></picture>'
)
FENCE = re.compile(r"^(```)(\w+) title=\"(.+?)\"\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+ .*\]\(.*)$", re.MULTILINE)
INSERT = re.compile(r"^<!-- site: (.+?) -->$", re.MULTILINE)


def list_pages() -> list[str]:
    """Every Markdown page of the repository that is part of the site, and its notebooks."""
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
    found += (ROOT / "examples").rglob("*.ipynb")
    names = {path.relative_to(ROOT).as_posix() for path in found}
    return sorted(name for name in names | set(PLAIN) if ".ipynb_checkpoints" not in name)


def place(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in ("README.md", "docs", "docs/"):
        return "index.md"
    if path == "results":
        return "results/README.md"
    for folder, new in (("docs/", ""), ("examples/", "notebooks/")):
        if path.startswith(folder) and path.endswith((".md", ".ipynb", ".png", ".html")):
            return new + path.removeprefix(folder)
    return path.lower() if path in PLAIN else path


class Stage:
    """Writes the source folder; a file that has not changed keeps its time, so that Sphinx skips it."""

    def __init__(self, folder: Path, quick: bool = False) -> None:
        self.folder = folder
        self.quick = quick  # without what takes long: live pages and pictures
        self.texts: dict[str, str] = {}
        self.written: set[Path] = set()
        self.shown: set[str] = set()
        self.figures = 0

    def write(self, path: str, content: str | bytes) -> None:
        target = self.folder / path
        data = content.encode("utf-8") if isinstance(content, str) else content
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != data:
            target.write_bytes(data)
        self.written.add(target)

    def build(self) -> None:
        for path in list_pages():
            if path.endswith(".ipynb"):
                self.write(place(path), self.convert_notebook(path))
            else:
                text = (ROOT / path).read_text("utf-8")
                if not text.startswith("# "):
                    text = f"# {Path(path).parent.name}: {Path(path).stem}\n\n{text}"
                self.texts[place(path)] = self.convert(text, path)
        for path, text in reference.pages():
            self.texts[path] = self.convert(text, path, place=lambda path: path)
        self._add_contents()
        for path, text in self.texts.items():
            self.write(path, text)
        self._show_files()
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()

    # --- one page ---------------------------------------------------------------------------------

    def convert(self, text: str, path: str, place: Callable[[str], str] = place) -> str:
        """A page as Sphinx reads it: links, pictures, titles of code, and what is inserted."""
        here = posixpath.dirname(place(path))
        kept: list[str] = []

        def keep(found: re.Match[str]) -> str:
            kept.append(found[0])
            return f"\0{len(kept) - 1}\0"

        text = CODE.sub(keep, text)
        text = HEADING.sub(links_below, text)
        text = PICTURE.sub(two_themes, text)
        text = LINK.sub(lambda link: self._link(link, path, here), text)
        text = IMAGE.sub(lambda image: self._image(image, path, here), text)
        text = re.sub("\0(\\d+)\0", lambda number: kept[int(number[1])], text)
        text = INSERT.sub(lambda found: inserts.insert(self, found[1], place(path)), text)
        return FENCE.sub(r"````{code-block} \2\n:caption: \3\n\n\4````", text)

    def convert_notebook(self, path: str) -> str:
        """A notebook whose text links as on any page, whose language is named, and with its outputs."""
        notebook = json.loads((ROOT / path).read_text("utf-8"))
        notebook["metadata"].setdefault("language_info", {"name": "python"})
        if not self.quick:
            outputs = inserts.notebook_outputs(self, path, place(path))
            for cell, made in zip(notebook["cells"], outputs, strict=True):
                if cell["cell_type"] == "code":
                    cell["outputs"] = made
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = self.convert("".join(cell["source"]), path)
        return json.dumps(notebook, ensure_ascii=False, indent=1)

    def _link(self, link: re.Match[str], path: str, here: str) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        if path.startswith(("reference/", "labs-")):  # a generated page: paths of the site
            return link[0]
        if target not in self._pages and not (ROOT / target).exists():
            raise SystemExit(f"{path} links to {link[1]}, which does not exist")
        return f"]({posixpath.relpath(self._resolve(target), here or '.')}{link[2] or ''})"

    def _resolve(self, target: str) -> str:
        """The path on the site of a file or folder of the repository; copies it if it is no page."""
        if target in self._pages or place(target) == "index.md" or target == "results":
            return place(target)
        source = ROOT / target
        if source.is_dir() or source.suffix in SHOWN or source.suffix == ".md":
            self.shown.add(target)
            return f"source/{target}.md"
        self.write(place(target), source.read_bytes())
        return place(target)

    def _image(self, image: re.Match[str], path: str, here: str) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), image[2]))
        if not (ROOT / target).is_file():
            return image[0]  # drawn by an insert
        self.write(f"_extra/{place(target)}", (ROOT / target).read_bytes())
        return f'{image[1]}="{posixpath.relpath(place(target), here or ".")}"'

    @property
    def _pages(self) -> set[str]:
        return set(list_pages())

    # --- what is around the pages -----------------------------------------------------------------

    def _add_contents(self) -> None:
        """The home page ends with the contents of the site; some pages, with those below them."""
        listed: set[str] = set()
        for section, pages in contents.SECTIONS.items():
            entries = [entry for page in pages for entry in self._entries(page)]
            listed |= set(entries)
            self._add_toctree("index.md", entries, section)
        for page, folder in contents.BELOW.items():
            self._add_toctree(page, [n for n in self._names(folder) if n not in listed])

    def _add_toctree(self, page: str, names: list[str], caption: str = "") -> None:
        if names:
            lines = [":hidden:", *([f":caption: {caption}"] if caption else []), ""]
            lines += names
            self.texts[page] += f"\n```{{toctree}}\n{chr(10).join(lines)}\n```\n"

    def _entries(self, page: str) -> list[str]:
        """The names for Sphinx: of one page, or of all notebooks."""
        if page == "notebooks":
            return self._names(page)
        path, _, title = page.partition(" ")
        name = place(path).removesuffix(".md")
        return [f"{title} </{name}>" if title else f"/{name}"]

    def _names(self, folder: str) -> list[str]:
        notebooks = (path.relative_to(self.folder) for path in self.written)
        paths = [*map(Path, self.texts), *notebooks]
        found = {path for path in paths if path.suffix in (".md", ".ipynb")}
        return sorted(f"/{p.with_suffix('').as_posix()}" for p in found if p.is_relative_to(folder))

    def _show_files(self) -> None:
        """A page for each file of code, and for each folder, that some page links to."""
        for target in sorted(self.shown):
            source = ROOT / target
            if source.is_dir():
                names = sorted(path.name for path in source.iterdir() if path.name[0] not in "._")
                body = "\n".join(f"- `{name}`" for name in names)
            elif source.suffix == ".md":
                body = f"````markdown\n{source.read_text('utf-8')}````"
            else:
                body = f"````{SHOWN[source.suffix]}\n{source.read_text('utf-8')}````"
            self.write(f"source/{target}.md", f"---\norphan: true\n---\n\n# `{target}`\n\n{body}\n")


def two_themes(picture: re.Match[str]) -> str:
    """A light and a dark picture, of which the theme shows one: its switch must work, too."""
    dark, alt, light = picture.groups()
    return "".join(
        f'<img class="only-{theme}" alt="{alt}" src="{src}" loading="lazy">'
        for theme, src in (("light", light), ("dark", dark))
    )


def links_below(heading: re.Match[str]) -> str:
    """A heading without links, which Sphinx's contents cannot hold; they follow in a line of their own."""
    link = r"\[([^]]*)\]\([^)]*\)"
    links = ", ".join(found[0] for found in re.finditer(link, heading[1]))
    return re.sub(link, r"\1", heading[1]) + f"\n\n{links}"
