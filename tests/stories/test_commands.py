"""Train, translate, evaluate, draw: the stories of DESIGN, section 5."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import regard as package
from regard import presets

SCRIPT = Path(sys.executable).parent / "regard"
COMMANDS = ["train", "translate", "evaluate", "diagram", "presets"]
TEXTS = ["<U> I am a student.", "<L> Hello", "<U> a"]


def test_the_console_script() -> None:
    done = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"regard {package.__version__}\n")
    done = subprocess.run([SCRIPT, "train", "cas"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'Did you mean "case"?' in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_torch() -> None:
    code = "import sys\nfrom regard.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "-h"], capture_output=True, text=True)
    assert "diagram" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("name", COMMANDS)
def test_help(regard, name: str, option: str) -> None:
    said = regard(name, option)
    assert said.code == 0
    assert f"regard {name}" in said.out
    assert said.err == ""


def test_presets(regard) -> None:
    said = regard("presets")
    assert said.code == 0
    assert "case" in presets.names()
    assert all(name in said.out for name in presets.names())


# --- train ----------------------------------------------------------------------------------------


def test_a_run_folder_holds_what_is_promised(run: Path, checksums) -> None:
    assert set(checksums(run)) == {
        "config.toml",
        "tokenizer.json",
        "model.safetensors",
        "last/state.safetensors",
        "metrics.jsonl",
        "card.json",
        "examples/1.png",
        "examples/2.png",
        "examples/3.png",
    }
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["model"]["hidden_dim"] == 16
    assert config["training"]["grad_clip"] == 1.0  # resolved: defaults are written out
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "validation"]
    assert (run / "examples/1.png").read_bytes().startswith(b"\x89PNG")


def test_the_card(run: Path) -> None:
    card = json.loads((run / "card.json").read_text())
    assert card["seed"] == 1
    assert card["config"]["data"]["train"] == 300
    assert {"regard", "python", "torch", "numpy"} <= set(card["versions"])
    assert all(len(card["data"][split]) == 64 for split in ("train", "val", "test"))
    assert card["figures"]["steps"] == 3
    assert card["figures"]["val_loss"] > 0


def test_train_tells_where_the_run_is(
    regard, small, tmp_path: Path, monkeypatch, checksums
) -> None:
    monkeypatch.chdir(tmp_path)
    said = regard("train", "case", *small, "--seed", 7, "--device", "cpu")
    assert said.code == 0
    assert "The run is in runs/case" in said.out
    assert "step      3  epoch  1.00" in said.out
    assert tomllib.loads(Path("runs/case/config.toml").read_text())["seed"] == 7
    before = checksums(tmp_path)
    assert regard("train", "case", *small, "--seed", 7, "--device", "cpu", "--resume").code == 0
    assert checksums(tmp_path) == before


def test_train_from_the_config_of_a_run(regard, run: Path, tmp_path: Path) -> None:
    """A run can be made again from what it saved."""
    said = regard("train", run / "config.toml", "--run", tmp_path / "again", "--device", "cpu")
    assert said.code == 0
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


# --- translate ------------------------------------------------------------------------------------


def test_int8(regard, run: Path) -> None:
    said = regard("translate", run, *TEXTS, "--int8")
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == len(TEXTS)
    said = regard("evaluate", run, "--int8", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["results"][0]["sentences"] > 0


def test_translate(regard, run: Path) -> None:
    said = regard("translate", run, *TEXTS)
    assert (said.code, said.err) == (0, "")
    assert len(said.out.splitlines()) == 3


def test_arguments_file_and_standard_input_agree(regard, run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))  # no newline at the end
    (tmp_path / "dos.txt").write_bytes("\r\n".join([*TEXTS, ""]).encode())
    expected = regard("translate", run, *TEXTS).out
    assert regard("translate", run, "--input", tmp_path / "in.txt").out == expected
    assert regard("translate", run, "--input", tmp_path / "dos.txt").out == expected
    assert regard("translate", run, "--input", "-", stdin="\n".join(TEXTS).encode()).out == expected
    one_by_one = "".join(regard("translate", run, text).out for text in TEXTS)
    assert one_by_one == expected


def test_translate_json(regard, run: Path) -> None:
    said = regard("translate", run, *TEXTS, "--json")
    found = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    assert [entry["text"] for entry in found] == regard("translate", run, *TEXTS).out.splitlines()
    assert found[1]["source"] == ["<L>", *"Hello", "<end>"]
    for entry in found:
        assert "".join(t for t in entry["target"] if t != "<end>") == entry["text"]
        assert entry["score"] < 0


def test_beam_and_nbest(regard, run: Path) -> None:
    [best] = json.loads(regard("translate", run, TEXTS[0], "--beam", 4, "--nbest", 3, "--json").out)
    ranks = [best["normalised"], *(other["normalised"] for other in best["alternatives"])]
    assert len(ranks) == 3
    assert ranks == sorted(ranks, reverse=True)
    assert regard("translate", run, TEXTS[0], "--beam", 4).out == best["text"] + "\n"


def test_a_moved_run_still_works(regard, run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "far" / "away"
    shutil.copytree(run, moved)
    assert regard("translate", moved, *TEXTS).out == regard("translate", run, *TEXTS).out
    shutil.rmtree(moved / "last")  # only a resume needs it
    assert regard("translate", moved, *TEXTS).code == 0


# --- evaluate -------------------------------------------------------------------------------------


def test_evaluate_json(regard, run: Path) -> None:
    said = regard("evaluate", run, "--json")
    report = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    assert {"perplexity", "bits_per_character", "loss", "split", "results"} <= set(report)
    assert report["split"] == "test"
    [result] = report["results"]
    names = "beam bleu bleu_lower signatures chrf exact_match sentences seconds"
    assert set(names.split()) <= set(result)
    assert (result["beam"], result["sentences"]) == (1, 40)


def test_evaluate_several_beams(regard, run: Path) -> None:
    report = json.loads(regard("evaluate", run, "--split", "val", "--beam", "1,2", "--json").out)
    assert [result["beam"] for result in report["results"]] == [1, 2]


def test_evaluate_agrees_with_training(regard, run: Path) -> None:
    card = json.loads((run / "card.json").read_text())
    report = json.loads(regard("evaluate", run, "--split", "val", "--json").out)
    assert report["loss"] == pytest.approx(card["figures"]["val_loss"], rel=1e-5)


def test_evaluate_for_people(regard, run: Path) -> None:
    said = regard("evaluate", run, "--split", "val")
    assert said.code == 0
    assert "tok:13a" in said.out  # the signature is printed
    assert "perplexity" in said.out


# --- diagram --------------------------------------------------------------------------------------

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}


@pytest.mark.parametrize("suffix", STARTS)
def test_diagram(regard, run: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / "new" / f"a.{suffix}"
    said = regard("diagram", run, "<U> Hello", "--out", picture, "--layer", 1, "--head", 1)
    assert said.code == 0, said.err
    assert picture.read_bytes().lower().startswith(STARTS[suffix].lower())
    assert said.out.splitlines()[-1] == str(picture)


# --- from Python ----------------------------------------------------------------------------------


def test_the_api(run: Path) -> None:
    model = package.load(str(run))
    out = model.translate(TEXTS, beam=5)
    for one, text in zip(out, TEXTS, strict=True):
        assert isinstance(one, package.Translation)
        assert isinstance(one.text, str)
        assert one.source == [text[:3], *text[4:], "<end>"]
        assert one.score < 0
        assert one.alternatives == []
        assert set(one.attention) == {"cross"}
        weights = one.attention["cross"]
        assert weights.shape == (1, 1, len(one.target), len(one.source))
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, len(one.target)))
    with pytest.raises(package.UserError, match=r"write translate\(\[text\]\)"):
        model.translate(TEXTS[0])
    with pytest.raises(package.UserError, match="attention=True"):
        _ = model.translate(TEXTS, attention=False)[0].attention
