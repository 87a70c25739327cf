"""README.md, docs/**/*.md, text of notebooks: every command and config works, every link leads somewhere."""

import gzip
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import typer

from regard import augment, cli, presets
from regard.text.datasets import DATASETS
from regard.training import synthetic
from tests.stories.conftest import read_page
from tests.stories.figures import missing, read_figures, slug
from tests.stories.generated import regenerate

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.ipynb"))
PAGES += NOTEBOOKS  # the text; test_notebooks.py runs the cells
LINKED = [*PAGES, "CHANGELOG.md", "SECURITY.md"]

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
NOT_RUN = (
    r"data get|bench|serve|lab --all|export .*--labs"  # downloads, takes minutes, or never ends
)
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
    return [*words, "--dry-run"] if words[0] == "compare" else words


def parse(words: list[str]) -> None:
    """Let the command line parse a command: its name, options and their types."""
    command, context = typer.main.get_command(cli.app), None
    while hasattr(command, "commands") and words:
        context = command.make_context("regard", words, parent=context)
        _, command, words = command.resolve_command(context, words)
    if words:
        command.make_context("regard", words, parent=context)


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


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(
    page, blocks, doc_files, regard, checkpoint, clean_registries, tmp_path, monkeypatch, capsys
):
    script = "".join(block.text for block in blocks(page) if block.language == "bash")
    monkeypatch.setattr("regard.training.examples.EXAMPLES", 0)
    make_translators_small(monkeypatch)
    monkeypatch.setattr("regard.page.notebook.show", lambda page, height: None)  # in no notebook
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    for name, text in doc_files.items():
        (tmp_path / name).write_text(text, "utf-8")
    for old, new in REPLACED.items():
        script = script.replace(old, new)
    for plugins, (program, *words) in expand(script, tmp_path) if script else []:
        if program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        if program != "regard":
            continue
        command = " ".join(words)
        if re.match(NOT_RUN, command):
            parse(words)
            continue
        monkeypatch.setenv("REGARD_PLUGINS", plugins)
        result = regard(*make_small(words, checkpoint))
        assert result.code == EXIT_CODES.get(command, 0), f"{command}\n{result.err}{result.out}"
    for block in blocks(page):
        if block.language == "python" and not block.title:
            exec(compile(block.text, page, "exec"), {})
    printed = capsys.readouterr().out
    for block in read_figures(read_page(ROOT / page)):
        if "printed" in block.sources:
            assert not missing(block, printed), (
                f"{page}, line {block.line}: see the docstring of figures.py"
            )


@pytest.mark.parametrize("page", PAGES)
def test_every_transcript_is_what_the_command_prints(page, blocks, regard):
    for block in blocks(page):
        if block.language == "console":
            command, _, expected = block.text.partition("\n")
            result = regard(*shlex.split(command.removeprefix("$ regard ")))
            pattern = re.escape(expected).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, result.out + result.err), result.out + result.err


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_what_the_commands_print(page, regard):
    text = read_page(ROOT / page)
    assert regenerate(text, lambda *words: regard(*words).out) == text, "run `make docs`"


def test_a_generated_part_is_replaced_by_what_its_command_prints():
    marked = "a\n<!-- generated by: regard presets {} -->\n\n{}\n<!-- end -->\nb\n"
    text = marked.format("x", "old\n") + marked.format("y", "")
    printed = regenerate(text, lambda *words: f"{words}\n")
    expected = (marked.format(name, f"{('presets', name)}\n") for name in "xy")
    assert printed == "".join(expected)


@pytest.mark.parametrize("page", PAGES)
def test_every_config_is_valid(page, blocks, doc_files, clean_registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_PLUGINS", "my_attention.py")
    for name, text in doc_files.items():
        (tmp_path / name).write_text(text, "utf-8")
    for block in blocks(page):
        if block.language == "toml":
            assert block.title, "a config needs a title: its file name"
            if block.title != "pyproject.toml":
                presets.load(block.title)


@pytest.mark.parametrize("page", LINKED)
def test_every_command_in_the_text_can_be_parsed(page):
    for command in re.findall(r"`regard ([^`\n]+)`", read_page(ROOT / page)):
        parse(shlex.split(command))


@pytest.mark.parametrize("page", LINKED)
def test_every_path_in_the_text_exists(page):
    pattern = r"`((?:src|tests|docs|results)/[^`\n]*)`"
    for path in re.findall(pattern, read_page(ROOT / page)):
        assert "NAME" in path or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", LINKED)
def test_every_link_leads_somewhere(page):
    text = read_page(ROOT / page)
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
        if target.startswith("http"):
            continue
        path = ((ROOT / page).parent / target) if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", read_page(path), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page} links to {target}#{anchor}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90


def test_every_page_is_listed_in_the_readme():
    """Those in folders of docs/ are in the contents of the site: tests/stories/test_site.py."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pages = [page for page in LINKED if page.count("/") < 2 and page.endswith(".md")]
    top = [page for page in pages if page != "README.md"]
    assert all(f"({page})" in readme for page in top)
