"""`regard augment`: synthetic pairs of monolingual text."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from regard.cli.common import (
    Bfloat16,
    Device,
    Int8,
    Overwrite,
    Run,
    app,
    check_new,
    err,
    load_translator,
)
from regard.config import Recipe, limits
from regard.config.synthetic import TRAIN
from regard.display import Display
from regard.errors import UserError
from regard.presets import describe_error


@app.command()
def augment(
    run: Run,
    input_: Annotated[
        str,
        typer.Option(
            "--input",
            help="The text to translate: a file with one sentence per line, plain or .gz, - for standard "
            "input, a public corpus, or train: the sources of the pairs that RUN was trained on.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The pairs to write, a .jsonl file.", show_default=False)
    ],
    language: Annotated[
        str | None,
        typer.Option(help="Which language of a public corpus.", show_default=False),
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse",
            help="Back-translation: the output becomes the source of a pair, the text its target.",
        ),
    ] = False,
    beam: Annotated[
        int, typer.Option(min=1, max=limits.BEAM, help="Beam width; 1 is greedy search.")
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
    first: Annotated[
        int | None,
        typer.Option(
            min=1, max=limits.SENTENCES, help="Only this many texts, the first.", show_default=False
        ),
    ] = None,
    max_ratio: Annotated[
        float,
        typer.Option(
            min=1, max=limits.RATIO, help="Leave out pairs with more than this ratio of lengths."
        ),
    ] = 3.0,
    min_score: Annotated[
        float | None,
        typer.Option(
            min=-limits.RATIO,
            max=0,
            help="Leave out outputs whose mean log-probability of a token is lower, such as -1.",
            show_default=False,
        ),
    ] = None,
    round_trip: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A model of the other direction: leave out pairs whose text it finds improbable, given the "
            "output; see --min-round-trip.",
            show_default=False,
        ),
    ] = None,
    min_round_trip: Annotated[
        float | None,
        typer.Option(
            min=-limits.RATIO,
            max=0,
            help="With --round-trip: the lowest mean log-probability of a token of the text. Default -3.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    int8: Int8 = False,
    bfloat16: Bfloat16 = False,
) -> None:
    """Translate monolingual text into synthetic pairs to train on (see data.synthetic).

    An interrupted command goes on where it was. Texts of RUN's validation and test set, duplicates, copies,
    repetitions and pairs of very different lengths are left out and counted.
    """
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: the pairs are JSON lines: give a name that ends in .jsonl")
    if min_round_trip is not None and round_trip is None:
        raise UserError("--min-round-trip needs --round-trip RUN")
    check_new([out], overwrite)
    options = {"reverse": reverse, "beam": beam, "sample": sample, "max_ratio": max_ratio}
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    recipe = make_recipe(options | {"min_score": min_score})
    translator = load_translator(run, device, int8, bfloat16)
    data = translator.config.data
    if translator.config.is_language_model:
        raise UserError(f"{run} is a language model, and pairs need a model that translates")

    from regard import augment as pairs

    origin: dict[str, Any] = pairs.describe(translator, str(run))
    origin |= {"input": input_, "language": language, "first": first}
    check = None
    if round_trip:
        reverse_model = load_translator(round_trip, device, int8, bfloat16)
        check = pairs.RoundTrip(reverse_model, -3.0 if min_round_trip is None else min_round_trip)
        origin["round_trip"] = pairs.describe(reverse_model, str(round_trip))
        origin["min_round_trip"] = check.min_score
    augmenter = pairs.Augmenter(translator, recipe, pairs.held_out_sentences(data), check)
    with ExitStack() as stack:
        texts, fraction_done = open_texts(input_, language, data, first, stack)
        display = stack.enter_context(Display(err, True, fraction_done(0) is not None))

        def report(lines: int, counts: Counter[str]) -> None:
            done = f"{counts['pairs']:,} pairs of {lines:,} texts"
            display.update(fraction_done(lines) or 0.0, done)

        card = pairs.write_pairs(augmenter, texts, out, origin, report)
    err.print(f"{pairs.summarise(card['counts'])}\nwritten to {out}")


def make_recipe(options: dict[str, Any]) -> Recipe:
    """The recipe of these options, or an error about the first that does not fit."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        detail = describe_error(error.errors()[0])
        raise UserError(f"augment: {detail}") from None


def open_texts(
    name: str, language: str | None, data: Any, first: int | None, stack: ExitStack
) -> tuple[Iterable[str | UserError], Callable[[int], float | None]]:
    """The texts, and a function from how many are done to the fraction that is; None: unknown."""
    from regard.lines import open_input
    from regard.text import corpus, synthetic
    from regard.text.datasets import DATASETS

    is_file = name == "-" or os.path.exists(name)
    if is_file or name not in (TRAIN, *DATASETS):
        if language is not None:
            raise UserError(
                f"--language is for a public corpus, and {name} is a file: leave it out"
            )
        file = stack.enter_context(open_input(name))
        return islice(file, first), lambda _: file.fraction_read if file.size else None
    if name == TRAIN:
        texts = [source for source, _ in corpus.load_split(data, TRAIN, raw=True)]
    else:
        texts = synthetic.load_sentences(name, language, synthetic.languages(data)[0])
    texts = texts[:first]
    return texts, lambda lines: lines / len(texts)
