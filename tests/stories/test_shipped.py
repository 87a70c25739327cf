"""What a user types right after the installation: translation and diagrams by a shipped model, offline."""

import json
import re
import zipfile
from pathlib import Path

import pytest

import regard as package
from regard import shipped

GERMAN, ENGLISH = "Ein Mann schläft auf einer grünen Bank.", "A man is sleeping on a green bench."


@pytest.fixture(autouse=True)
def fresh_machine(tmp_path: Path, monkeypatch) -> None:
    """An empty folder, no data, and no cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def test_translate(regard) -> None:
    result = regard("translate", "de-en", GERMAN, "--beam", "5")
    assert (result.code, result.out, result.err) == (0, f"{ENGLISH}\n", "")


@pytest.mark.parametrize("name", shipped.names())
def test_everyday_sentences(regard, name: str) -> None:
    lines = "Guten Morgen.\nWenn ich mehr Zeit hätte, würde ich Klavier spielen lernen.\n"
    result = regard("translate", name, "--input", "-", "--json", stdin=lines.encode())
    outputs = [document["text"] for document in json.loads(result.out)]
    assert outputs[0] == "Good morning."
    assert outputs[1].startswith("If I had more time, I would learn")


def test_int8_products(regard) -> None:
    assert regard("translate", "de-en", GERMAN, "--int8").out == f"{ENGLISH}\n"


def test_diagram(regard, tmp_path: Path) -> None:
    result = regard("diagram", "de-en", GERMAN, "--layer", "4", "--out", "bench.png")
    assert (result.code, result.out) == (0, f"{ENGLISH}\nbench.png\n")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_python() -> None:
    model = package.load("de-en")
    out = model.translate([GERMAN], beam=5)[0]
    assert out.text == ENGLISH
    weights = out.attention["cross"]
    assert weights.shape == (4, 4, len(out.target), len(out.source))


def test_evaluate_without_the_data_says_how_to_get_it(regard) -> None:
    result = regard("evaluate", "de-en")
    assert result.code == 2
    assert "Get it with: regard data get tatoeba-de-en" in result.err


def test_evaluate(regard, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "tatoeba").mkdir()
    pairs = [f"I have {n} books.\tIch habe {n} Bücher.\tCC-BY" for n in range(600)]
    with zipfile.ZipFile(tmp_path / "tatoeba" / "deu-eng.zip", "w") as archive:
        archive.writestr("deu.txt", "\n".join(pairs))
    document = json.loads(regard("evaluate", "de-en-gru", "--json").out)
    assert document["run"] == "de-en-gru"
    assert document["results"][0]["bleu_lower"] > 50


def unwrap(text: str) -> str:
    """The text of a help page, without its frame and line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_info_has_quality_and_terms(regard) -> None:
    text = unwrap(regard("info", "de-en").out)
    assert re.search(r"test, beam 5: BLEU 53\.\d+, BLEU \(lowercased\) 53\.\d+", text)
    assert "contributors of tatoeba.org (CC BY 2.0 FR)" in text


def test_help_and_the_list_of_presets_name_the_models(regard) -> None:
    for command in ("translate", "evaluate", "diagram"):
        assert "shipped model: de-en, de-en-gru" in unwrap(regard(command, "-h").out)
    assert "shipped with regard: de-en, de-en-gru" in regard("presets").out
    assert 'regard translate de-en "Guten Morgen!"' in regard("-h").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["translate", "de-em", "Hallo"],
            r'shipped model (de-en, de-en-gru). Did you mean "de-en"?',
        ),
        (["translate", "en-de", "Hello"], "shipped model (de-en, de-en-gru)."),
        (["translate", "de-en"], "nothing to translate: give a text"),
        (["train", "de-en"], 'no preset "de-en": it is a shipped model, trained already'),
        (["train", "--resume", "de-en-gru"], 'Its preset is "tatoeba-de-en-gru".'),
    ],
)
def test_mistakes(regard, words: list[str], message: str) -> None:
    result = regard(*words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_folder_of_that_name_wins(regard, run: Path, tmp_path: Path) -> None:
    (tmp_path / "de-en").symlink_to(run)
    before = regard("translate", run, "<U> a").out
    assert regard("translate", "de-en", "<U> a").out == before
