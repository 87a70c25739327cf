"""Saved figures: their contents, and atomic writes."""

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from regard.diagrams import draw, fonts, heatmap, save
from regard.diagrams.charts import Line, chart
from regard.errors import RegardWarning, UserError
from tests.hostile import HOSTILE

UNUSUAL = ["漢字", "😀", "مرحبا", "<b>&'\"", "$x_1$", "a\x00b"]


def test_png_has_200_dpi(tmp_path: Path) -> None:
    figure = heatmap(np.eye(3), list("abc"), list("xyz"))
    inches = figure.get_size_inches()
    save(figure, tmp_path / "new" / "folder" / "a.PNG")
    with Image.open(tmp_path / "new" / "folder" / "a.PNG") as image:
        assert image.format == "PNG"
        assert image.size == pytest.approx(inches * 200, abs=1)


def test_svg_is_deterministic_and_keeps_text_as_text(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(tmp_path / name, np.eye(6)[None, None], UNUSUAL, list("uvwxyz"), title="T & <t>")
    first = (tmp_path / "one.svg").read_bytes()
    assert first == (tmp_path / "two.svg").read_bytes()
    texts = {e.text for e in ElementTree.fromstring(first).iter() if e.tag.endswith("}text")}
    assert {"漢字", "😀", "مرحبا", "<b>&'\"", "$x_1$", "a\ufffdb", "u", "T & <t>"} <= texts
    assert "attention weight" in texts
    assert b"<dc:date>" not in first


@pytest.fixture
def only_dejavu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No installed font has CJK characters."""
    monkeypatch.setattr(fonts, "PREFERRED", ("DejaVu Sans",))


@pytest.mark.usefixtures("only_dejavu")
def test_missing_characters_are_spelled_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(
        RegardWarning, match=r"\(漢字\).*code points\. Install fonts-noto-cjk "
    ) as seen:
        figure = heatmap(np.eye(3), ["漢字", "a字b", "é"], ["x", "שלום", "مرحبا"], title="漢 x")
    assert len(seen) == 1
    axis = figure.axes[0]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["U+6F22 U+5B57", "a U+5B57 b", "é"]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["x", "שלום", "مرحبا"]
    assert figure.texts[0].get_text() == "U+6F22 x"
    save(figure, tmp_path / "odd.png")


@pytest.mark.usefixtures("only_dejavu")
def test_svg_and_html_leave_missing_characters_to_the_reader(tmp_path: Path) -> None:
    for name in ("a.svg", "a.html"):
        draw(tmp_path / name, np.eye(2)[None, None], ["漢字", "字"], ["x", "y"])
    assert ">漢字<" in (tmp_path / "a.svg").read_text("utf-8")
    assert '"\\u6f22\\u5b57"' in (tmp_path / "a.html").read_text("utf-8")
    with pytest.warns(RegardWarning, match="draw a .html or .svg"):
        draw(tmp_path / "a.pdf", np.eye(2)[None, None], ["漢字", "字"], ["x", "y"])


@pytest.mark.usefixtures("only_dejavu")
def test_other_scripts_have_another_package() -> None:
    with pytest.warns(RegardWarning, match="fonts-noto-core"):
        heatmap([[1.0]], ["नमस्ते"], ["b"])


def test_pdf_is_deterministic_and_keeps_text_as_text(tmp_path: Path) -> None:
    for name in ("one.pdf", "two.pdf"):
        draw(tmp_path / name, np.eye(3)[None, None], list("abc"), list("xyz"), title="a title")
    first = (tmp_path / "one.pdf").read_bytes()
    assert first == (tmp_path / "two.pdf").read_bytes()
    assert first.startswith(b"%PDF")
    assert b"CIDFontType2" in first  # TrueType outlines: text, not paths
    assert b"CreationDate" not in first


def test_large_matrix_gives_a_small_svg(tmp_path: Path) -> None:
    save(heatmap(np.eye(200), ["x"] * 200, ["y"] * 200), tmp_path / "long.svg")
    assert (tmp_path / "long.svg").stat().st_size < 500_000


def test_a_saved_figure_is_cleared(tmp_path: Path) -> None:
    figure = heatmap([[1.0]], ["a"], ["b"])
    save(figure, tmp_path / "a.png")
    assert figure.axes == []


def test_a_failed_write_keeps_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(self: Figure, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    figure = heatmap([[1.0]], ["a"], ["b"])
    with pytest.raises(UserError, match=r"a\.png cannot be written: No space left on device"):
        save(figure, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]
    assert figure.axes  # not cleared: it can be saved elsewhere


def test_saved_files_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save(heatmap([[1.0]], ["a"], ["b"]), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", ["folder.png", "file/a.png", "file/a.html"])
def test_unwritable_path_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written: \w+"):
        draw(tmp_path / name, [[[[1.0]]]], ["a"], ["b"])
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.png"]


@pytest.mark.parametrize("name", ["a.eps", "a", "png", "a.html"])
def test_unknown_suffix_error_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"\.png, \.svg, \.pdf \(draw also writes \.html\)"):
        save(heatmap([[1.0]], ["a"], ["b"]), tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore::regard.errors.RegardWarning")
@pytest.mark.parametrize("picture", ["diagram", "chart"])
def test_no_text_becomes_an_element_of_an_svg(picture: str, tmp_path: Path) -> None:
    texts, path = [*HOSTILE.values(), "]]><script>", "--><a href='x'>"], tmp_path / "a.svg"
    if picture == "diagram":
        weights = np.full((1, 1, len(texts), len(texts)), 1 / len(texts))
        draw(path, weights, texts, texts, title=" ".join(texts))
    else:
        lines = [Line(text, [1.0, 2.0], [[1.0], [2.0]]) for text in texts]
        save(chart({"y": lines}, x_label=texts[-1], title=" ".join(texts)), path)
    elements = list(ElementTree.parse(path).getroot().iter())
    tags = {element.tag.rpartition("}")[2] for element in elements}
    assert not tags & {"script", "a", "img", "foreignObject", "animate", "set"}
    names = {name for element in elements for name in element.attrib}
    assert not {name for name in names if name.startswith("on")}
