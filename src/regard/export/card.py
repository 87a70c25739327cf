"""The model card: README.md of an exported folder, with the metadata that the Hugging Face hub reads."""

from pathlib import Path
from typing import Any

from regard import config, documents, files, schemas
from regard.escaping import escape_markdown, to_json
from regard.export.scores import Scores
from regard.tables import markdown_table
from regard.text.datasets import DATASETS
from regard.text.hub import is_hub_name
from regard.translator import Translator


def write_card(
    path: Path,
    translator: Translator,
    name: str,
    scores: Scores | None,
    no_scores: str,
    difference: str | None,
) -> None:
    """Write the card of the model in the folder of `path`, which has that name."""
    saved = path.parent / "card.json"
    card = documents.read(saved, schemas.Card) if saved.is_file() else {}
    sections = [
        front_matter(translator.config, name, scores),
        f"# {escape_markdown(name)}",
        translator.config.description,
        describe_model(translator, card),
        usage(translator.config, difference),
        quality(scores, no_scores, card),
        data_terms(translator.config.data),
    ]
    files.write(path, "\n\n".join(section for section in sections if section) + "\n")


def front_matter(settings: config.Config, name: str, scores: Scores | None) -> str:
    """The metadata as YAML. JSON is YAML, so no value needs other quotes."""
    task = "text-generation" if settings.is_language_model else "translation"
    lines: dict[str, Any] = {"library_name": "regard", "pipeline_tag": task, "tags": ["regard"]}
    if isinstance(settings.data, config.DatasetData):
        lines["language"] = [settings.data.source, settings.data.target]
    if scores is not None:
        heading = "BLEU" if scores.metric == "bleu" else "BLEU (tokens)"
        result = {
            "task": {"type": task},
            "dataset": {
                "name": describe_data(settings.data),
                "type": "regard",
                "split": scores.split,
            },
            "metrics": [{"type": "bleu", "value": round(scores.bleu, 2), "name": heading}],
        }
        lines["model-index"] = [{"name": name, "results": [result]}]
    entries = [f"{key}: {to_json(value)}" for key, value in lines.items()]
    return "\n".join(["---", *entries, "---"])


def describe_model(translator: Translator, card: dict[str, Any]) -> str:
    """A table of what it is and how it was trained."""
    settings, tokenizers = translator.config, translator.tokenizers
    sizes = {tokenizers.source.vocab_size, tokenizers.target.vocab_size}
    vocabulary = " and ".join(f"{size:,}" for size in sorted(sizes))
    rows = {
        "architecture": settings.model.kind,
        "parameters": f"{translator.model.parameter_count:,}",
        "tokenizer": f"{settings.tokenizer.kind}, vocabulary {vocabulary}",
        "data": describe_data(settings.data),
        "seed": str(settings.seed),
    }
    if card:
        versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
        seconds = card["figures"]["training_seconds"]
        rows |= {"trained on": f"{card['device']}, {seconds:.0f} s", "versions": versions}
    return markdown_table([("", ""), *rows.items()], text_columns=2).rstrip()


def usage(settings: config.Config, difference: str | None) -> str:
    text = "" if settings.is_language_model else ' "..."'
    call = "[]" if settings.is_language_model else '["..."]'
    lines = [
        "## Use",
        "With Regard, from this folder or, once it is uploaded, as `hf:user/name`:",
        f"```bash\nregard translate FOLDER{text}\n```",
        f'```python\nimport regard\n\nmodel = regard.load("FOLDER")\nmodel.translate({call})\n```',
    ]
    if difference is None:
        lines.append(
            "It has LLaMA's form, so `transformers.AutoModelForCausalLM.from_pretrained(FOLDER)` loads it, "
            "too. There, a sequence of ids is the source, `<end>` (2), `<begin>` (1), then the target up to "
            "its `<end>`; `tokenizer.json` is in Regard's format."
        )
    else:
        lines.append(
            f"`transformers` cannot load it, because it is not of LLaMA's form: {difference}."
        )
    return "\n\n".join(lines)


ON_TOKENS = "on lower-cased tokens of Moses, which this model reads and writes (data.preprocess)"


def quality(scores: Scores | None, no_scores: str, card: dict[str, Any]) -> str:
    lines = ["## Quality"]
    if scores is None:
        lines.append(f"BLEU is not known: {no_scores.rstrip('.')}.")
    else:
        low_high = (
            "unknown" if scores.interval is None else "{:.1f} to {:.1f}".format(*scores.interval)
        )
        columns = ("split", "sentences", "beam", "BLEU", "95 % interval", "chrF", "exact match")
        figures = (
            f"{scores.bleu:.2f}",
            low_high,
            "-" if scores.chrf is None else f"{scores.chrf:.2f}",
            f"{scores.exact_match:.1%}",
        )
        row = (scores.split, f"{scores.sentences:,}", str(scores.beam), *figures)
        lines.append(markdown_table([columns, row]).rstrip())
        text = "cased, on detokenised text" if scores.metric == "bleu" else ON_TOKENS
        lines.append(f"BLEU: `{scores.signature}`, {text}; {scores.source}.")
        if scores.interval is not None:
            lines.append(
                "The interval is from bootstrap resampling of the sentences: another test set, not "
                "another training run."
            )
    if card:
        lines.append(f"Validation loss: {card['figures']['val_loss']:.4f} per token.")
    return "\n\n".join(lines)


def describe_data(data: Any) -> str:
    """The data in a few words, without the paths of the user's files."""
    if isinstance(data, config.DatasetData):
        return f"{data.name}, {data.source} to {data.target}"
    if isinstance(data, config.SyntheticData):
        return f"generated sentences ({data.name})"
    if isinstance(data, config.PlainText) and data.name is not None:
        return f"{data.name}, {', '.join(data.languages)}"
    if isinstance(data, config.HubData) and is_hub_name(data.name):
        return f"{data.name}, {' to '.join(data.fields)}"
    return "own files"


def data_terms(data: Any) -> str:
    """The terms of the data, as the registry of datasets states them."""
    name = getattr(data, "name", None)
    lines = ["## Data and terms"]
    if isinstance(data, config.SyntheticData):
        lines.append("The training data is generated by Regard: it has no terms.")
    elif name in DATASETS:
        dataset = DATASETS[name]
        lines.append(f"{name}: {dataset.description}. Terms of the data: {dataset.licence}.")
        lines.append("Whoever uses or shares these weights has to observe them.")
    elif isinstance(data, config.HubData) and is_hub_name(data.name):
        lines.append(f"{data.name} on the Hugging Face hub: its page there states its terms.")
    else:
        lines.append(
            "The training data is the author's own files. Add their terms here before you share it."
        )
    return "\n\n".join(lines)
