"""Make a folder like those of this package from a run: int8 weights, and a card with its figures and terms.

    python -m regard.shipped runs/tatoeba-de-en src/regard/shipped/de-en

It evaluates the run before and after, on its test split, so the data must be on this machine.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import checksums, documents, files, schemas
from regard.cli.common import err, out
from regard.config import Config
from regard.errors import UserError
from regard.evaluation import evaluate
from regard.loading import load, read_config
from regard.models import weights
from regard.text import corpus
from regard.text.datasets import DATASETS
from regard.training.card import write_card

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

BEAMS = (1, 5)
FIGURES = ("beam", "bleu", "bleu_lower", "chrf", "exact_match", "signatures")
# Only data whose terms allow it: the text of each is part of the card.
TERMS = {
    "tatoeba-de-en": {
        "attribution": "Trained on sentences by the contributors of tatoeba.org (CC BY 2.0 FR), in the "
        "German-English selection of manythings.org/anki. Give this attribution with the weights.",
        "why_this_data": "Multi30k, the data of most of our experiments, derives from Flickr30k: it is for "
        "non-commercial research, and does not allow weights that anybody may use for anything.",
        "domain": "Short everyday sentences, six or seven words on average. Long sentences, specialist "
        "vocabulary, rare names and numbers are often wrong. Not for use where errors matter.",
    }
}


def ship(run: Path, folder: Path) -> dict[str, Any]:
    """Write `folder` and return its card."""
    if run.resolve() == folder.resolve():
        raise UserError(f"{folder} is the run itself: choose another folder")
    config = read_config(run)
    terms = data_terms(config)
    pairs = corpus.load(config.data)["test"]
    tensors, record = weights.read(run / "model.safetensors")
    tokenizers = documents.read(run / "tokenizer.json", schemas.Tokenizers)
    compact = documents.dumps(tokenizers, ensure_ascii=False, separators=(",", ":"))
    files.write(folder / "tokenizer.json", compact)
    files.write(folder / "config.toml", (run / "config.toml").read_bytes())
    record |= {"files": checksums.of_run(folder)}
    weights.save(folder / "model.safetensors", tensors, record, int8=True)
    evaluation = {
        "split": "test",
        "sentences": len(pairs),
        "float32": measure(run, pairs),
        "int8": measure(folder, pairs),
    }
    card = documents.read(run / "card.json", schemas.Card) | {
        "terms": terms,
        "evaluation": evaluation,
    }
    write_card(folder, card)
    return card


def data_terms(config: Config) -> dict[str, str]:
    """Licence, attribution and domain of the run's data, if it allows shipping the weights."""
    name = getattr(config.data, "name", config.data.kind)
    if name not in TERMS:
        raise UserError(
            f'the terms of the data "{name}" are not in TERMS of this module: only models trained on '
            f"{', '.join(TERMS)} may be shipped"
        )
    return {"dataset": name, "licence": DATASETS[name].licence, **TERMS[name]}


def measure(run: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Size on disk and translation quality of a run."""
    document = evaluate(load(run), pairs, BEAMS)
    return {
        "bytes": (run / "model.safetensors").stat().st_size,
        "perplexity": document["perplexity"],
        "results": [{name: row[name] for name in FIGURES} for row in document["results"]],
    }


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
) -> None:
    """Write a run's int8 weights, tokenizer, config and card to a folder."""
    try:
        card = ship(run, folder)
    except UserError as error:
        err.print(f"regard: {error}", style="red")
        raise typer.Exit(2) from None
    for form in ("float32", "int8"):
        figures = card["evaluation"][form]
        bleu = ", ".join(
            f"{row['bleu_lower']:.2f} (beam {row['beam']})" for row in figures["results"]
        )
        out.print(f"{form}: {figures['bytes']:,} bytes, BLEU {bleu}")


if __name__ == "__main__":
    app()
