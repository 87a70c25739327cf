"""How commands of the docs are made small, and what stands in for the network: by rules, no second copy."""

import gzip
import hashlib
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard import augment, config, presets
from regard.benchmarks import training
from regard.benchmarks.timing import measure_matmul_rate
from regard.labs import LABS
from regard.page import labs
from regard.serve.settings import Settings
from regard.text.datasets import DATASETS
from regard.training import synthetic
from tests.serve.conftest import serve as running_server

ROOT = Path(__file__).parents[2]

# How a page's commands are made small; all the rest runs as written, in order, in one folder with small data.
SMALL = ["training.epochs=1", "training.min_steps=0"]
SMALL_TASK = ["data.max_length=9", "data.train=150", "data.val=20", "data.test=20"]
SMALL_MODEL = {
    "recurrent": ["model.embedding_dim=8", "model.hidden_dim=8"],
    "transformer": ["model.d_model=16", "model.d_ff=16"],
    "decoder-only": ["model.d_model=16", "model.d_ff=16"],
    "pretrained": ["model.name={checkpoint}"],
}
SMALL_OUTPUTS = ["search.max_ratio=0.1", "search.max_extra=2"]
REPLACED = {"--layer 18": "--layer 2"}  # the small checkpoint has three layers
ADDED = {
    "bench training": "--rounds 1 --steps 1 --batch 2 --device cpu",
    "bench decoding": "--rounds 1 --sentences 2 --batch 2 --beam 1,2 --device cpu",
    "bench engines": "--rounds 1 --sentences 2 --beam 1,2 --shortlist 2",
    "bench long": "--rounds 1 --lengths 64 --device cpu",
    "serve": "--port 0 --device cpu",
}
LABS_OF_ALL = ("copying", "sinusoids")  # what `lab --all` and `export --labs` run: all take minutes
RUN_ELSEWHERE = {  # patterns of commands that are only parsed here
    "bench data": "tests/benchmarks/test_data.py",  # starts two training processes
    "train .*--devices": "tests/stories/test_devices.py",  # starts two training processes
}
NOT_PROGRAMS = {  # languages of blocks that are not executed
    "": "derivations of labs",
    "text": "sessions on several machines",
    "bibtex": "an entry",
    "nginx": "a configuration of a proxy",
    "sh": "needs Docker; tests/serve/test_deploy.py reads compose.yaml and Dockerfile",
}
EXIT_CODES = {"lab copying --check answers/copying.py": 1}  # the worksheet is still empty


def small_settings(preset: str, checkpoint) -> list[str]:
    config = presets.load(preset)
    settings = [*SMALL, *SMALL_MODEL[config.model.kind]]
    settings += SMALL_TASK if config.data.kind == "synthetic" else []
    settings += [] if config.is_language_model else SMALL_OUTPUTS
    folder = checkpoint("llama") if config.is_pretrained else ""
    return [word for text in settings for word in ("--set", text.format(checkpoint=folder))]


def make_translators_small(monkeypatch) -> None:
    """Models that are trained first, for synthetic pairs, are small too; any output of theirs will do."""
    reverse_config = synthetic.reverse_config

    def small_reverse_config(entry, data):
        settings = [*SMALL, *SMALL_MODEL["recurrent"], *SMALL_OUTPUTS]
        return presets.resolve(reverse_config(entry, data), dict(map(split_setting, settings)))

    monkeypatch.setattr(synthetic, "reverse_config", small_reverse_config)
    monkeypatch.setattr(augment.Augmenter, "check_output", lambda *_: None)


def split_setting(text: str) -> tuple[str, object]:
    path, value = presets.parse_setting(text)
    return ".".join(path), value


def make_small(words: list[str], checkpoint) -> list[str]:
    """A command as the tests run it: `train` with small settings, `compare` only lists its runs."""
    if words[:2] == ["train", "--resume"]:
        return [*words, "--device", "cpu"]
    if words[0] == "train":
        return [*words, *small_settings(words[1], checkpoint), "--device", "cpu"]
    for command, options in ADDED.items():
        if words[: command.count(" ") + 1] == command.split():
            return [*words, *options.split()]
    return [*words, "--dry-run"] if words[0] == "compare" else words


def make_benchmarks_small(monkeypatch) -> None:
    """Their models; what they measure is no figure."""
    shape = {"d_model": 16, "layers": 2, "heads": 2, "d_ff": 32, "vocab_size": 211}
    monkeypatch.setattr("regard.benchmarks.decoding.SHAPE", shape)
    monkeypatch.setattr(training, "VOCAB_SIZE", 31)
    gru = training.GRU.model_copy(update={"embedding_dim": 8, "hidden_dim": 8})
    monkeypatch.setattr(training, "GRU", gru)
    monkeypatch.setattr(training, "TRANSFORMER", config.Transformer(d_model=16, d_ff=16))
    monkeypatch.setattr(training, "measure_matmul_rate", partial(measure_matmul_rate, size=64))


@contextmanager
def stand_ins(words: list[str], folder: Path, monkeypatch) -> Iterator[None]:
    """What a command needs beyond this machine and a few seconds."""
    with monkeypatch.context() as patch, ExitStack() as stack:
        if words[0] == "serve":
            patch.setattr("regard.serve.server.serve", ask_once)
        if words[:2] == ["data", "get"]:
            stack.enter_context(data_server(words[2], folder, patch))
        if "--all" in words or "--labs" in words:
            for name in set(LABS) - set(LABS_OF_ALL):
                patch.delitem(LABS, name)
            points = labs.choose_points
            patch.setattr(labs, "choose_points", lambda lab: points(lab)[:2])
        yield


def ask_once(settings: Settings, announce: Callable[[str], object]) -> None:
    """`regard serve`, which would never end: its server answers one request over HTTP, and stops."""
    with running_server(settings) as client:
        announce(f"http://127.0.0.1:{client.port}/")
        name = client.get("/api/models").json["models"][0]["name"]
        answer = client.post("/api/translate", model=name, texts=["ein"])
        assert answer.status == 200, answer.body


@contextmanager
def data_server(name: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The small corpora behind HTTP on this machine, in the place of those of their makers."""
    dataset = DATASETS[name]
    source = folder / "data" / dataset.folder
    handler = partial(QuietHandler, directory=str(source))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        files = {
            file: (
                f"{address}/{file}",
                sha and hashlib.sha256((source / file).read_bytes()).hexdigest(),
            )
            for file, (_, sha) in dataset.files.items()
        }
        patch.setitem(DATASETS, name, replace(dataset, files=files))
        patch.setenv("REGARD_DATA", "")
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        patch.setenv("no_proxy", "*")
        try:
            yield
        finally:
            server.shutdown()
        for file in dataset.files:
            assert (folder / "cache" / dataset.folder / file).read_bytes() == (
                source / file
            ).read_bytes()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def expand(script: str, folder: Path) -> list[tuple[str, list[str]]]:
    """($REGARD_PLUGINS, words) of every command of a script, after bash has expanded it.

    Programs are replaced by one that records its arguments, so nothing else can run.
    """
    bin_folder, record = folder / "bin", folder / "commands"
    bin_folder.mkdir()
    bash = shutil.which("bash")
    recorder = f"""#!{bash}
    printf '%s\\0' "${{REGARD_PLUGINS-}}" "${{0##*/}}" "$@" >> {record}
    printf '\\n' >> {record}
    """
    for name in ("regard", "pip", "make", "curl"):
        (bin_folder / name).write_text(recorder)
        (bin_folder / name).chmod(0o755)
    subprocess.run(
        [str(bash), "-eu", "-c", script], env={"PATH": str(bin_folder)}, cwd=folder, check=True
    )
    lines = record.read_text("utf-8").removesuffix("\0\n").split("\0\n")
    return [(plugins, words) for plugins, *words in (line.split("\0") for line in lines)]


def write_data(folder: Path) -> None:
    """The text files that the pages name, and the corpora of the presets, with a few lines each."""
    sentences = [f"number {n} is {'small' if n < 50 else 'large'}" for n in range(80)]
    for name in ("train.de", "train.en", "train.txt"):
        (folder / name).write_text("\n".join(sentences), "utf-8")
    for name in ("val.de", "val.en", "val.txt", "test.de", "test.en", "input.txt", "other.txt"):
        (folder / name).write_text("\n".join(sentences[::20]), "utf-8")
    (folder / "results").symlink_to(ROOT / "results")
    (folder / "text.txt").write_text("\n".join(f"Zeile {n}" for n in range(9)), "utf-8")
    archive = folder / "data" / "tatoeba" / "deu-eng.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("deu.txt", "\n".join(f"Number {n}.\tNummer {n}." for n in range(600)))
    for split, step in (("train", 1), ("val", 20), ("test", 20)):
        rows = [f"{sentence}\t{sentence.upper()}\n" for sentence in sentences[::step]]
        (folder / f"{split}.tsv").write_text("".join(rows), "utf-8")
    rows = [f"{sentence}\t{sentence}\n" for sentence in sentences[::20]]
    (folder / "pairs.tsv").write_text("".join(rows), "utf-8")
    for dataset in (DATASETS["multi30k"], DATASETS["multi30k-captions"]):
        (folder / "data" / dataset.folder).mkdir(parents=True)
        optional = dataset.optional_splits.items()
        later = [f"{split}.{language}.gz" for split, names in optional for language in names]
        for name in (*dataset.files, *later):
            lines = sentences if name.startswith("train") else sentences[::20]
            path = folder / "data" / dataset.folder / name
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
