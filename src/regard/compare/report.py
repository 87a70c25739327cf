"""Write the results of a comparison: results.json, three tables, plots, and a page of outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import documents, files, schemas
from regard.compare.columns import COLUMNS, SPREAD_COLUMNS, TRAINING_TIME_COLUMNS, default_columns
from regard.compare.curves import draw_curves
from regard.compare.outputs import format_outputs
from regard.compare.plan import Run
from regard.compare.quality import draw_quality
from regard.compare.speed import ROUNDS
from regard.compare.tables import format_rows, to_csv, to_markdown
from regard.errors import UserError
from regard.escaping import escape_markdown
from regard.evaluation.metrics import METRICS, headline_bleu
from regard.statistics import Summary, paired_bootstrap_p, welch_p
from regard.tables import latex_table
from regard.text import corpus


def write_report(
    runs: Sequence[Run],
    split: str,
    command: str,
    failed: Sequence[str],
    out: Path,
    *,
    beams: Sequence[int] = (),
    columns: Sequence[str] | None = None,
    speeds: Mapping[str, float] | None = None,
    theme: str = "light",
) -> str:
    """Write all files to `out`; return the Markdown table. Failed runs are left out and listed.

    `beams`: the widths to report, the first in the table; by default those that each run was evaluated with.
    """
    systems: dict[str, list[Run]] = {}
    evaluations: dict[Path, dict[str, Any]] = {}
    for run in runs:
        if (evaluation := read_evaluation(run, split, beams)) is not None:
            systems.setdefault(run.system.label, []).append(run)
            evaluations[run.folder] = evaluation
    if not systems:
        raise UserError(f"no run finished, so there is no table to write: {failed[0]}")
    headline = select_headline(systems)
    columns = columns or default_columns(headline)
    results = [
        collect_results(label, group, [evaluations[run.folder] for run in group], headline)
        for label, group in systems.items()
    ]
    baseline, (pairs, comparable) = results[0], find_shared_sentences(systems, split)
    references = [target for _, target in pairs]
    for result in results:
        result["sentences_per_second"] = (speeds or {}).get(result["system"])
        if result["system"] in comparable:
            check_outputs(systems[result["system"]], result["outputs"], split, len(pairs))
        if result is not baseline and result["system"] in comparable:
            paired = pair_outputs(baseline, result)
            result["p"] = paired_bootstrap_p(*paired, references, metric=METRICS[headline].create())
            result["welch"] = welch_p(*(run_values(one, headline) for one in (baseline, result)))
    run_results = [run for result in results for run in result["runs"]]
    platforms = [
        f"{run['device']}, PyTorch {run['versions'].get('torch', 'unknown')}" for run in run_results
    ]
    metadata = {
        "command": command,
        "split": split,
        "trained_on": list(dict.fromkeys(platforms)),
        "baseline": baseline["system"],
        "headline": headline,
        "signature": baseline["signature"],
        "jobs": max(run["jobs"] for run in run_results),
        "failed": list(failed),
    }
    if len({result["seeds"] for result in results}) > 1 and "seeds" not in columns:
        columns = ("seeds", *columns)
    rows = format_rows(results, columns)
    table = to_markdown(rows, table_notes(metadata, results, columns), command, failed)
    outputs = {result["system"]: result.pop("outputs")[0] for result in results}
    files.write(out / "table.md", table)
    files.write(out / "table.tex", latex_table(rows))
    files.write(out / "table.csv", to_csv(results))
    others = [label for label in outputs if label not in comparable]
    page = format_outputs(pairs, {label: outputs[label] for label in comparable}, split, others)
    files.write(out / "outputs.md", page)
    document = {**metadata, "systems": results}
    files.write(out / "results.json", documents.dumps(document, indent=1) + "\n")
    draw_curves(
        {label: [run.folder for run in group] for label, group in systems.items()}, out, theme
    )
    draw_quality([run.system for run in runs], results, out, theme, headline)
    return table


def read_evaluation(run: Run, split: str, beams: Sequence[int]) -> dict[str, Any] | None:
    """The evaluation of a run with these beam widths, in this order; None if it lacks one.

    An earlier comparison may have evaluated the run with others, too.
    """
    path = run.folder / f"evaluation-{split}.json"
    if not path.is_file():
        return None
    evaluation = documents.read(path, schemas.ComparedEvaluation)
    results = {result["beam"]: result for result in evaluation["results"]}
    if not set(beams) <= set(results):
        return None
    return {**evaluation, "results": [results[beam] for beam in beams or results]}


def select_headline(systems: Mapping[str, Sequence[Run]]) -> str:
    """What the comparison is about: exact match if all its data is synthetic, BLEU on tokens if all its text
    is preprocessed, else lowercased BLEU.
    """
    data = [run.config.data for group in systems.values() for run in group]
    if all(table.kind == "synthetic" for table in data):
        return "exact_match"
    metrics = {headline_bleu(table) for table in data}
    return metrics.pop() if len(metrics) == 1 else "bleu_lower"


def check_outputs(
    runs: Sequence[Run], outputs: Sequence[Sequence[str]], split: str, count: int
) -> None:
    """Raise an error unless each run has an output for each sentence of the split."""
    for run, texts in zip(runs, outputs, strict=True):
        if len(texts) != count:
            path = run.folder / f"evaluation-{split}.json"
            reason = f"it has {len(texts):,} outputs, and the split {split} has {count:,} sentences"
            raise documents.damaged(path, reason, schemas.Evaluation)


def pair_outputs(one: dict[str, Any], other: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The outputs of two systems, for the seeds that both have."""
    first, second = (
        {
            run["seed"]: outputs
            for run, outputs in zip(system["runs"], system["outputs"], strict=True)
        }
        for system in (one, other)
    )
    seeds = [seed for seed in first if seed in second]
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def run_values(result: dict[str, Any], metric: str) -> list[float]:
    """The metric of each run of a system, as in the table."""
    return [run["results"][0][metric] for run in result["runs"]]


def find_shared_sentences(
    systems: Mapping[str, Sequence[Run]], split: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """The first system's sentence pairs, and the systems that were evaluated on the same ones."""
    data = {label: group[0].config.data for label, group in systems.items()}
    pairs = {table: corpus.load_split(table, split) for table in set(data.values())}
    first = pairs[next(iter(data.values()))]
    return first, [label for label, table in data.items() if pairs[table] == first]


def collect_results(
    label: str, runs: Sequence[Run], evaluations: Sequence[dict[str, Any]], headline: str
) -> dict[str, Any]:
    """Summary statistics of one system, with the figures of each of its runs."""
    cards = [documents.read(run.folder / "card.json", schemas.Card) for run in runs]
    first = [evaluation["results"][0] for evaluation in evaluations]
    figures = {
        **summarize(
            first,
            *(
                "bleu_lower",
                "bleu_lower_longest",
                "bleu",
                "bleu_tokens",
                "chrf",
                "ter",
                "exact_match",
            ),
        ),
        **summarize([{"headline": in_points(result, headline)} for result in first], "headline"),
        **summarize(evaluations, "perplexity", "bits_per_character", "cache_bytes_per_token"),
        **summarize(
            [card["figures"] for card in cards],
            *(
                "val_loss",
                "parameters",
                "trainable_parameters",
                "training_seconds",
                "tokens_per_second",
            ),
        ),
    }
    return {
        "system": label,
        "seeds": len(runs),
        "summary": figures,
        "p": None,
        "welch": None,
        "beam": first[0]["beam"],
        "signature": first[0]["signatures"][headline_bleu(runs[0].config.data)],
        "runs": [
            {
                "seed": run.seed,
                "device": card["device"],
                "versions": card["versions"],
                "jobs": card.get("jobs", 1),  # missing in cards of an earlier version
                "figures": card["figures"],
                **omit(evaluation, "split", "results"),
                "results": [omit(result, "outputs", "lengths") for result in evaluation["results"]],
            }
            for run, card, evaluation in zip(runs, cards, evaluations, strict=True)
        ],
        "outputs": [result["outputs"] for result in first],
    }


def summarize(records: Sequence[dict[str, Any]], *names: str) -> dict[str, Any]:
    """A Summary of each figure; None if a run lacks it."""
    available = [name for name in names if all(one.get(name) is not None for one in records)]
    return dict.fromkeys(names) | {
        name: asdict(Summary.of([record[name] for record in records])) for name in available
    }


def in_points(result: dict[str, Any], metric: str) -> float | None:
    """A metric on a scale of 100; None if it is undefined for this run."""
    return result[metric] and result[metric] * (100 if metric == "exact_match" else 1)


def omit(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}


def table_notes(
    metadata: dict[str, Any], results: Sequence[dict[str, Any]], columns: Sequence[str]
) -> list[str]:
    """The notes below the table: seeds, split, metric, explanations of columns, hardware."""
    counts = sorted({result["seeds"] for result in results})
    width, jobs = results[0]["beam"], metadata["jobs"]
    notes = [
        f"{' or '.join(map(str, counts))} {'seed' if counts == [1] else 'seeds'}",
        f"{metadata['split']} split, {'greedy' if width == 1 else f'beam {width}'}",
        f"sacreBLEU `{metadata['signature']}`",
    ]
    values = {
        "baseline": escape_markdown(metadata["baseline"]),
        "headline": METRICS[metadata["headline"]].heading,
        "rounds": ROUNDS,
    }
    if metadata["headline"] == "exact_match" and set(columns) & set(SPREAD_COLUMNS):
        notes.append("std, variance and CI: of exact match, in percentage points")
    notes += [COLUMNS[name].note.format(**values) for name in columns if COLUMNS[name].note]
    if jobs > 1 and set(columns) & set(TRAINING_TIME_COLUMNS):
        notes.append(f"up to {jobs} runs shared the device, so training times are not comparable")
    return [*notes, escape_markdown(" and ".join(metadata["trained_on"]))]
