"""`regard train`, `translate`, `evaluate` and `diagram` on a small model."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import regard as package
from regard import presets
from regard.cli import app
from regard.cli.models import is_run_folder
from regard.devices import KERNEL_CACHES

SCRIPT = Path(sys.executable).parent / "regard"
COMMANDS = [
    *("train", "translate", "evaluate", "diagram", "presets", "settings", "info", "runs", "lab")
]
TEXTS = ["<U> I am a student.", "<L> Hello", "<U> a"]


def test_console_script() -> None:
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
    result = regard(name, option)
    assert result.code == 0
    assert f"regard {name}" in result.out
    assert result.err == ""


def test_presets(regard) -> None:
    result = regard("presets")
    assert result.code == 0
    assert "case" in presets.names()
    assert all(name in result.out for name in presets.names())
    assert json.loads(regard("presets", "--json").out) == presets.names()


def test_architectures_of_presets(regard) -> None:
    rows = json.loads(regard("presets", "--table", "case-llama", "case-deepseek", "--json").out)
    assert [row["preset"] for row in rows] == ["case-llama", "case-deepseek"]
    # Bytes: four layers; two heads of 16 keys and values, or 16 + 8 numbers; float32.
    assert [row["cache bytes per token"] for row in rows] == [4 * 2 * 2 * 16 * 4, 4 * (16 + 8) * 4]
    layers = {  # W_q, W_kv, W_o; gate, up, down; two norms; then the final norm
        "case-llama": 64 * (64 + 64 + 64) + 3 * 64 * 176 + 2 * 64,
        "case-deepseek": 64 * (4 * 24 + 24 + 64) + 16 + 16 * 128 + 3 * 64 * 176 + 2 * 64,
    }
    assert {row["preset"]: row["parameters"] for row in rows} == {
        name: 4 * parameters + 64 for name, parameters in layers.items()
    }
    table = regard("presets", "--table", "case-llama", "case-transformer", "multi30k-mamba").out
    assert "| case-llama | rotary | multi-head (heads = 4, kv_heads = 2) | rms, pre |" in table
    assert "| multi30k-mamba | none | state-space | rms, pre | swiglu | 0 |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_only_transformers_have_an_architecture_to_compare(regard) -> None:
    result = regard("presets", "--table", "case")
    assert result.code == 2
    assert 'the model of "case" is recurrent, and only Transformers have these parts' in result.err


def test_data_cache(regard, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    entry = tmp_path / "tokenised" / "a.npy"
    entry.parent.mkdir()
    entry.write_bytes(bytes(3 * 2**20))
    for words, size in ([], "1 entries, 3.0 MiB"), (["--clear"], "0 entries, 0.0 MiB"):
        result = regard("data", "cache", *words)
        assert (result.code, result.out.splitlines()[0]) == (0, f"{entry.parent}: {size}")
    assert not entry.exists()


# --- train ----------------------------------------------------------------------------------------


def test_files_of_a_run_folder(run: Path, checksums) -> None:
    assert set(checksums(run)) == {
        "config.toml",
        "tokenizer.json",
        "model.safetensors",
        "metrics.jsonl",
        "card.json",
        "examples/1.png",
        "examples/2.png",
        "examples/3.png",
    }
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["model"]["hidden_dim"] == 16
    assert config["training"]["grad_clip"] == 1.0  # resolved: with defaults
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "validation"]
    assert (run / "examples/1.png").read_bytes().startswith(b"\x89PNG")


def test_card(run: Path) -> None:
    card = json.loads((run / "card.json").read_text())
    assert card["seed"] == 1
    assert card["config"]["data"]["train"] == 300
    assert {"regard", "python", "torch", "numpy"} <= set(card["versions"])
    assert all(len(card["data"][split]) == 64 for split in ("train", "val", "test"))
    assert card["figures"]["steps"] == 3
    assert card["figures"]["val_loss"] > 0


def test_train_prints_the_run_folder(regard, small, tmp_path: Path, monkeypatch, checksums) -> None:
    monkeypatch.chdir(tmp_path)
    result = regard("train", "case", *small, "--seed", 7, "--device", "cpu")
    assert result.code == 0
    assert "The run is in runs/case" in result.out
    assert "step      3  epoch  1.00" in result.out
    assert tomllib.loads(Path("runs/case/config.toml").read_text())["seed"] == 7
    before = checksums(tmp_path)
    assert regard("train", "case", *small, "--seed", 7, "--device", "cpu", "--resume").code == 0
    assert checksums(tmp_path) == before


def test_saved_config_reproduces_the_run(regard, run: Path, tmp_path: Path) -> None:
    result = regard("train", run / "config.toml", "--run", tmp_path / "again", "--device", "cpu")
    assert result.code == 0
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


def test_resume_needs_the_folder_only(regard, run: Path, tmp_path, checksums, monkeypatch) -> None:
    shutil.copytree(run, tmp_path / "case")
    monkeypatch.chdir(tmp_path)
    before = checksums(tmp_path)
    unchanged = ("--run", tmp_path / "case", "--seed", 1, "--set", "data.train=300")
    for words in (["--resume", "./case"], [tmp_path / "case", "--resume", *unchanged]):
        result = regard("train", *words, "--device", "cpu")
        assert result.code == 0, result.err
        assert "case is finished: there is nothing to continue" in result.out
    assert checksums(tmp_path) == before
    assert not is_run_folder("case", resume=True)  # a preset, wherever the command is typed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command(regard, run: Path, small, tmp_path, monkeypatch, number) -> None:
    """What it prints can be pasted."""
    from regard.training import loop

    original = loop.TrainingLoop.step

    def interrupted(self: loop.TrainingLoop) -> None:
        original(self)
        signal.raise_signal(number)

    folder = tmp_path / "my runs" / "case"
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "step", interrupted)
        result = regard("train", "case", "--run", folder, *small, "--device", "cpu")
    signal.signal(signal.SIGINT, former)
    assert result.code == 128 + number
    command = f"interrupted. Continue with: regard train --resume '{folder}' --device cpu\n"
    assert result.err == command
    if number == signal.SIGINT:
        assert regard(*shlex.split(command.partition(": ")[2])[1:]).code == 0
        weights = [(path / "model.safetensors").read_bytes() for path in (folder, run)]
        assert weights[0] == weights[1]


def test_command_that_is_interrupted_before_training(regard, small, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "my runs" / "case"
    words = ["train", "case", "--run", folder, *small, "--seed", 7, "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("regard.training.run.build_loop", raise_interrupt)
        result = regard(*words)
    assert result.code == 130
    assert not folder.exists()
    message, _, command = result.err.partition(": nothing was kept. Start again with: ")
    assert message == "interrupted before the first checkpoint"
    assert shlex.split(command) == ["regard", *map(str, words)]


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# --- translate ------------------------------------------------------------------------------------


def test_int8(regard, run: Path) -> None:
    result = regard("translate", run, *TEXTS, "--int8")
    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == len(TEXTS)
    result = regard("evaluate", run, "--int8", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["results"][0]["sentences"] > 0


def test_translate(regard, run: Path) -> None:
    result = regard("translate", run, *TEXTS)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == 3


def test_arguments_file_and_standard_input_give_the_same_output(
    regard, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))  # no newline at the end
    (tmp_path / "dos.txt").write_bytes("\r\n".join([*TEXTS, ""]).encode())
    expected = regard("translate", run, *TEXTS).out
    assert regard("translate", run, "--input", tmp_path / "in.txt").out == expected
    assert regard("translate", run, "--input", tmp_path / "dos.txt").out == expected
    assert regard("translate", run, "--input", "-", stdin="\n".join(TEXTS).encode()).out == expected
    one_by_one = "".join(regard("translate", run, text).out for text in TEXTS)
    assert one_by_one == expected


def test_translate_json(regard, run: Path) -> None:
    result = regard("translate", run, *TEXTS, "--json")
    outputs = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert [output["text"] for output in outputs] == regard(
        "translate", run, *TEXTS
    ).out.splitlines()
    assert outputs[1]["source"] == ["<L>", *"Hello", "<end>"]
    for output in outputs:
        assert "".join(t for t in output["target"] if t != "<end>") == output["text"]
        assert output["score"] < 0


def test_beam_and_nbest(regard, run: Path) -> None:
    [best] = json.loads(regard("translate", run, TEXTS[0], "--beam", 4, "--nbest", 3, "--json").out)
    ranks = [best["normalised"], *(other["normalised"] for other in best["alternatives"])]
    assert len(ranks) == 3
    assert ranks == sorted(ranks, reverse=True)
    assert regard("translate", run, TEXTS[0], "--beam", 4).out == best["text"] + "\n"


def test_run_can_be_moved(regard, run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "other" / "folder"
    shutil.copytree(run, moved)
    assert regard("translate", moved, *TEXTS).out == regard("translate", run, *TEXTS).out


# --- evaluate -------------------------------------------------------------------------------------


def test_evaluate_json(regard, run: Path) -> None:
    command = regard("evaluate", run, "--json")
    report = json.loads(command.out)
    assert (command.code, command.err) == (0, "")
    assert {"perplexity", "bits_per_character", "loss", "split", "results"} <= set(report)
    assert report["split"] == "test"
    [result] = report["results"]
    names = "beam bleu bleu_lower signatures chrf exact_match sentences seconds"
    assert set(names.split()) <= set(result)
    assert (result["beam"], result["sentences"]) == (1, 40)


def test_evaluate_several_beams(regard, run: Path) -> None:
    report = json.loads(regard("evaluate", run, "--split", "val", "--beam", "1,2", "--json").out)
    assert [result["beam"] for result in report["results"]] == [1, 2]


def test_evaluate_gives_the_validation_loss_of_training(regard, run: Path) -> None:
    card = json.loads((run / "card.json").read_text())
    report = json.loads(regard("evaluate", run, "--split", "val", "--json").out)
    assert report["loss"] == pytest.approx(card["figures"]["val_loss"], rel=1e-5)


def test_evaluate_report(regard, run: Path) -> None:
    result = regard("evaluate", run, "--split", "val")
    assert result.code == 0
    assert "tok:13a" in result.out  # the signature is printed
    assert "perplexity" in result.out


# --- diagram --------------------------------------------------------------------------------------

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_diagram(regard, run: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / "new" / f"a.{suffix}"
    result = regard("diagram", run, "<U> Hello", "--out", picture, "--layer", 1, "--head", 1)
    assert result.code == 0, result.err
    assert picture.read_bytes().lower().startswith(SIGNATURES[suffix].lower())
    assert result.out.splitlines()[-1] == str(picture)


# --- from Python ----------------------------------------------------------------------------------


def test_python_api(run: Path) -> None:
    model = package.load(str(run))
    outputs = model.translate(TEXTS, beam=5)
    for output, text in zip(outputs, TEXTS, strict=True):
        assert isinstance(output, package.Translation)
        assert isinstance(output.text, str)
        assert output.source == [text[:3], *text[4:], "<end>"]
        assert output.score < 0
        assert output.alternatives == []
        assert set(output.attention) == {"cross"}
        weights = output.attention["cross"]
        assert weights.shape == (1, 1, len(output.target), len(output.source))
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, len(output.target)))
    with pytest.raises(package.UserError, match=r"write translate\(\[text\]\)"):
        model.translate(TEXTS[0])
    with pytest.raises(package.UserError, match="attention=True"):
        _ = model.translate(TEXTS, attention=False)[0].attention


def list_commands(command: Any, name: str = "regard") -> dict[str, Any]:
    """Every command and group below `command`, by what is typed."""
    children = getattr(command, "commands", {}).items()
    below = [list_commands(child, f"{name} {child_name}") for child_name, child in children]
    return {name: command} | {key: value for part in below for key, value in part.items()}


COMMANDS = list_commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_brackets(name):
    """Rich reads [text] as markup and drops it."""
    texts = [
        COMMANDS[name].help or "",
        *(getattr(p, "help", "") or "" for p in COMMANDS[name].params),
    ]
    assert not [text for text in texts if "[" in text]


def test_translating_limits_the_caches_of_kernels(regard, run: Path, monkeypatch) -> None:
    """Without, memory grows with the number of shapes that batches have."""
    names = list(KERNEL_CACHES)
    monkeypatch.delenv(names[0], raising=False)
    monkeypatch.setenv(names[1], "7")
    assert regard("translate", run, "<U> a").code == 0
    assert [os.environ.get(name) for name in names] == ["64", "7"]
