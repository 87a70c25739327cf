"""The site: every page has its place, and it builds without a warning or a dead link."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "latex2mathml", "ziamath")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_docs = pytest.mark.skipif(bool(missing), reason=f'pip install -e ".[docs]": no {missing}')


def listed() -> list[str]:
    from docs.site.contents import SECTIONS

    pages = [page.partition(" ")[0] for pages in SECTIONS.values() for page in pages]
    return [page for page in pages if page.endswith(".md")]


def test_every_page_is_in_the_contents():
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    unlisted = [page for page in pages if page not in {*listed(), "docs/index.md"}]
    assert not unlisted, f"add them to docs/site/contents.py: {unlisted}"


def test_every_listed_page_exists():
    generated = ("reference/", "labs-")
    for page in listed():
        if not page.startswith(generated):
            assert (ROOT / page).is_file(), page
    assert len(listed()) == len(set(listed()))


@needs_docs
def test_every_score_normaliser_and_position_has_a_section():
    """A new kind needs its formula, its code, a picture and a word on when to use it."""
    from regard.attention import NORMALISERS, POSITIONS, SCORES

    for kind, names in (("score", SCORES), ("normaliser", NORMALISERS), ("position", POSITIONS)):
        text = (ROOT / f"docs/understand/{kind}s.md").read_text("utf-8")
        sections = re.split(r"^## ", text, flags=re.MULTILINE)
        for name in names:
            [section] = [s for s in sections if f"<!-- site: draw {kind} {name} -->" in s]
            assert "$$" in section
            assert "<!-- site: code regard.attention." in section
            assert "**When.**" in section


def test_every_number_of_the_version_is_that_of_the_package():
    import regard

    for page in ("CITATION.cff", "docs/about/citing.md"):
        assert regard.__version__ in (ROOT / page).read_text("utf-8"), page


@needs_docs
def test_pictures_of_kinds():
    """What the text says of them: a score that compares finds the words, others cannot."""
    from docs.site.pictures import normaliser_weights, position_weights, score_weights

    found = {
        name: float(score_weights(name).diagonal().mean()) for name in ("additive", "scaled-dot")
    }
    assert min(found.values()) > 0.9
    assert float(score_weights("location").diagonal().mean()) < 0.3
    assert (normaliser_weights("sparsemax")[-1] == 0).sum() == 6
    assert position_weights("none").unique().numel() == 1


@needs_docs
def test_faults_of_a_site_are_found(tmp_path):
    from docs.site.check import check_site

    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    links = '<a href="b.html#here">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
    loads = '<img src="gone.png"><script src="https://example.org/x.js"></script>'
    (tmp_path / "a.html").write_text(links + loads)
    counts, faults = check_site(tmp_path)
    assert counts == {"pages": 2, "links": 3, "anchors": 2, "pictures and styles": 2}
    assert [fault.partition(" ")[2] for fault in faults] == [
        "loads gone.png, which is not there",
        "loads https://example.org/x.js from elsewhere",
        "links to b.html#gone, which has no such anchor",
        "links to c.html, which is not there",
    ]


@needs_docs
def test_a_dead_link_of_a_page_is_an_error(tmp_path):
    from docs.site.stage import Stage

    stage = Stage(tmp_path)
    with pytest.raises(SystemExit, match=r"docs/x\.md links to gone\.md, which does not exist"):
        stage.convert("[gone](gone.md)\n", "docs/x.md")
    with pytest.raises(SystemExit, match="unknown insert 'nothing'"):
        stage.convert("<!-- site: nothing -->\n", "docs/x.md")


@needs_docs
def test_a_page_as_sphinx_reads_it(tmp_path):
    """Links follow the pages, titles of code are shown, and code is left alone."""
    from docs.site.stage import Stage

    text = '[r](../../results/README.md#x) `[a](b)`\n\n```toml title="a.toml"\n[x](y)\n```\n'
    expected = (
        "[r](../results/README.md#x) `[a](b)`\n\n"
        "````{code-block} toml\n:caption: a.toml\n\n[x](y)\n````\n"
    )
    assert Stage(tmp_path).convert(text, "docs/start/x.md") == expected


@needs_docs
def test_a_notebook_links_as_a_page_does(tmp_path, monkeypatch):
    from docs.site import stage

    cells = [
        {"cell_type": "markdown", "source": ["# N\n", "[labs](../docs/labs.md)"]},
        {"cell_type": "code", "source": ["x[0](y)"]},
    ]
    (tmp_path / "examples").mkdir()
    notebook = {"metadata": {}, "cells": cells}
    (tmp_path / "examples" / "n.ipynb").write_text(json.dumps(notebook), "utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "labs.md").touch()
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    written = json.loads(
        stage.Stage(tmp_path / "out", quick=True).convert_notebook("examples/n.ipynb")
    )
    assert written["cells"][0]["source"] == "# N\n[labs](../labs.md)"
    assert written["cells"][1] == cells[1]
    assert written["metadata"] == {"language_info": {"name": "python"}}


@needs_docs
def test_pictures_of_a_notebook_follow_the_theme():
    """Both pictures are shown in the place of one; progress is left out, pieces of a stream are joined."""
    from base64 import b64encode

    from docs.site.notebooks import outputs_in_themes

    def run(theme):
        picture = {"image/png": b64encode(theme.encode()).decode()}
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
            {"output_type": "stream", "name": "stderr", "text": "50 %"},
            {"output_type": "stream", "name": "stdout", "text": "2\n"},
            {"output_type": "execute_result", "data": picture, "metadata": {}},
        ]
        cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]
        return json.dumps({"cells": cells}).encode()

    saved = {}

    def save(name, theme, data):
        saved[theme] = data
        return f"{name}-{theme}.png"

    text, [stream, picture] = outputs_in_themes(run, save)
    assert text == []
    assert stream["text"] == "1\n2\n"
    html = picture["data"]["text/html"]
    assert re.findall(r'class="only-(\w+)" src="(.*?)"', html) == [
        ("light", "1-2-light.png"),
        ("dark", "1-2-dark.png"),
    ]
    assert saved == {"light": b"light", "dark": b"dark"}


@needs_docs
@pytest.mark.timeout(300)  # 24 seconds of CPU time
def test_the_site_builds_without_a_warning(tmp_path):
    """Without pictures and live pages, which `make docs` makes too."""
    command = [sys.executable, "-m", "docs.site", "--quick", "--out", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    pages = int(re.findall(r"(\d+) pages", done.stdout)[0])
    assert pages > len(listed())
