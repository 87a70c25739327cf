"""`regard translate`: texts given as arguments, and files of any size."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard import files
from regard.cli.common import (
    AsJson,
    Bfloat16,
    Device,
    Engine,
    Int8,
    Interventions,
    Run,
    app,
    err,
    load_translator,
    parse_interventions,
)
from regard.cli.failures import discard
from regard.config import limits
from regard.display import Display
from regard.errors import UserError
from regard.escaping import escape_for, one_cell, one_line, to_json

if TYPE_CHECKING:
    from regard.lines import Input, Line, LineTranslator
    from regard.page import schema
    from regard.translation import Translation

NOTHING = "nothing to translate"
CLOSED_PIPE = 141  # as a shell reports a program that SIGPIPE ended


@app.command()
def translate(
    run: Run,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to translate, each in quotes.", show_default=False),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="A file with one text per line, plain or .gz, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write to this file, not to standard output.", show_default=False),
    ] = None,
    beam: Annotated[
        int, typer.Option(min=1, max=limits.BEAM, help="Beam width; 1 is greedy search.")
    ] = 1,
    nbest: Annotated[
        int, typer.Option(min=1, max=limits.BEAM, help="Number of outputs per text.")
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=limits.TEMPERATURE, help="Sampling: the logits are divided by it."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, max=limits.COUNT, help="Sampling: only the k most probable tokens."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sampling: only the most probable tokens of total probability p."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=limits.SEED, help="Sampling: random seed.")
    ] = None,
    intervene: Interventions = None,
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
    bfloat16: Bfloat16 = False,
    engine: Engine = "pytorch",
) -> None:
    """Translate texts with a trained model.

    With --input, a blank line stays blank. A line that cannot be translated is reported on standard error by
    its number, its output is an empty line, and the exit code is 1.
    """
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    if options and not sample:
        raise UserError(f"--{next(iter(options)).replace('_', '-')} needs --sample")
    if text and input_:
        raise UserError("give texts in quotes or --input, not both")
    interventions = parse_interventions(intervene)
    translator = load_translator(run, device, int8, bfloat16, engine)
    texts = choose_texts(text or [], input_, translator.config.is_language_model)

    from regard.lines import LineTranslator, open_input
    from regard.translation import Decoding, Sampling

    sampling = Sampling(**options) if sample else None
    decoding = Decoding(beam, nbest, sampling, interventions=interventions)
    render = render_json if as_json else render_nbest if nbest > 1 else render_best
    with ExitStack() as stack:
        file = stack.enter_context(open_input(input_)) if input_ else None
        sink = stack.enter_context(open_output(output, input_))
        has_bar = file is not None and not sink.isatty()
        display = stack.enter_context(Display(err, has_bar, bool(file and file.size)))
        job = Job(LineTranslator(translator, decoding), display)
        write(render(job.translate_file(file) if file else job.translate_texts(texts)), sink, job)
    if job.failed:
        err.print(f"{job.failed:,} of {job.done:,} lines were not translated")
        raise typer.Exit(1)


def choose_texts(texts: list[str], input_: str | None, is_language_model: bool) -> list[str]:
    """The texts to translate, without those of a file: for a language model, one empty text."""
    if is_language_model:
        if input_:
            raise UserError("this is a language model, which has no source: leave out --input")
        return texts or [""]
    if not texts and not input_:
        raise UserError(f"{NOTHING}: give a text in quotes, or --input FILE (- is standard input)")
    return texts


@contextmanager
def open_output(path: Path | None, input_: str | None) -> Iterator[IO[str]]:
    """The file to write to, or standard output. The input itself is never overwritten."""
    if path is None:
        yield sys.stdout
        return
    if path.is_file():
        if input_ not in (None, "-") and path.samefile(str(input_)):
            raise UserError(f"--output {path} is the input: choose another file")
        err.print(f"overwriting {path}")
    with files.open_output(path) as file:
        yield file


@dataclass
class Job:
    """Translates windows of lines; counts them, and reports progress and problems on standard error."""

    lines: "LineTranslator"
    display: Display
    done: int = 0
    failed: int = 0

    def translate_texts(self, texts: list[str]) -> Iterator[list["Line"]]:
        """Texts given as arguments: one that cannot be translated is an error."""
        translator, decoding = self.lines.translator, self.lines.decoding
        outputs = translator.translate(
            texts,
            beam=decoding.beam,
            nbest=decoding.nbest,
            sample=decoding.sample,
            attention=False,
            interventions=decoding.interventions,
        )
        yield self.report(
            [
                self.lines.as_line(text, output, f"text {number}")
                for number, (text, output) in enumerate(zip(texts, outputs, strict=True), 1)
            ]
        )

    def translate_file(self, file: "Input") -> Iterator[list["Line"]]:
        """The lines of a file: each that cannot be translated is reported, and the others are done."""
        from regard.lines import windows

        # At a terminal, each line is answered at once.
        for texts in windows(file, 1, 1) if file.is_interactive else windows(file):
            yield self.report(self.lines.translate(texts, self.done + 1))
            self.display.update(file.fraction_read, f"{self.done:,} lines")
        if not self.done:
            raise UserError(f"{NOTHING}: {file.name} is empty")

    def report(self, window: list["Line"]) -> list["Line"]:
        """Print the problems of a window; return it."""
        for line in window:
            if line.error or line.warning:
                self.display.print(str(line.error) if line.error else f"warning: {line.warning}")
        self.done += len(window)
        self.failed += sum(line.error is not None for line in window)
        return window


def write(chunks: Iterator[str], sink: IO[str], job: Job) -> None:
    """Write each chunk at once. Ctrl-C keeps what is done; a reader such as `head` may stop early."""
    try:
        for chunk in chunks:
            sink.write(escape_for(sink.isatty(), chunk))
            sink.flush()
    except KeyboardInterrupt as stop:
        stop.args = (f"interrupted after {job.done:,} lines",)
        raise
    except BrokenPipeError:
        discard(sys.stdout)
        raise typer.Exit(CLOSED_PIPE) from None


# --- output formats -------------------------------------------------------------------------------


def render_best(windows: Iterable[list["Line"]]) -> Iterator[str]:
    """One line for each line: its best translation, or nothing."""
    for window in windows:
        yield "".join(
            f"{one_line(line.translation.text) if line.translation else ''}\n" for line in window
        )


def render_nbest(windows: Iterable[list["Line"]]) -> Iterator[str]:
    """The n-best list of each line, or an empty line: rank, score and text between tabs."""
    for window in windows:
        yield "".join(format_nbest(line.translation) for line in window)


def format_nbest(best: "Translation | None") -> str:
    outputs = [best, *best.alternatives] if best else []
    ranked = enumerate(outputs, start=1)
    return "".join(f"{r}\t{o.normalised:.4f}\t{one_cell(o.text)}\n" for r, o in ranked) or "\n"


def render_json(windows: Iterable[list["Line"]]) -> Iterator[str]:
    """One JSON document, a list with an object for each line, complete even after Ctrl-C."""
    start = "[\n "
    try:
        for window in windows:
            lines = (to_record(line).model_dump(mode="json", exclude_unset=True) for line in window)
            records = (to_json(one, indent=1) for one in lines)
            yield start + ",\n ".join(record.replace("\n", "\n ") for record in records)
            start = ",\n "
    except KeyboardInterrupt:
        yield "[]\n" if start.startswith("[") else "\n]\n"
        raise
    yield "\n]\n"


def to_record(line: "Line") -> "schema.Translation":
    """A line as a JSON object; a line without translation has an empty one."""
    from regard.page import schema

    if line.translation:
        return schema.Translation.of(line.translation)
    empty: dict[str, Any] = {"text": "", "source": (), "target": (), "alternatives": ()}
    empty |= {"score": None, "normalised": None} | (
        {"error": str(line.error)} if line.error else {}
    )
    return schema.Translation(**empty)
