"""What a comparison leaves: results.json, three tables, pictures, and a page of outputs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import files
from regard.compare.columns import COLUMNS, TIMED, USUAL
from regard.compare.curves import draw_curves
from regard.compare.outputs import side_by_side
from regard.compare.plan import Run
from regard.compare.quality import draw_quality
from regard.compare.speed import ROUNDS
from regard.compare.statistics import Summary, paired_p
from regard.compare.tables import comma_separated, latex, markdown, shown
from regard.errors import UserError
from regard.text import corpus


def write_report(
    runs: Sequence[Run],
    split: str,
    command: str,
    failed: Sequence[str],
    out: Path,
    *,
    columns: Sequence[str] = USUAL,
    speeds: Mapping[str, float] | None = None,
    theme: str = "light",
) -> str:
    """Write everything to `out`; the Markdown table. A run that failed is left out and told."""
    systems: dict[str, list[Run]] = {}
    for run in runs:
        if (run.folder / f"evaluation-{split}.json").is_file():
            systems.setdefault(run.system.label, []).append(run)
    if not systems:
        raise UserError(f"no run came to an end, so there is no table: {failed[0]}")
    results = [collect(label, mine, split) for label, mine in systems.items()]
    baseline, (pairs, alike) = results[0], same_sentences(systems, split)
    references = [target for _, target in pairs]
    for result in results:
        result["sentences_per_second"] = (speeds or {}).get(result["system"])
        if result is not baseline and result["system"] in alike:
            result["p"] = paired_p(*paired(baseline, result), references)
    trained = [run for result in results for run in result["runs"]]
    places = [f"{run['device']}, PyTorch {run['versions']['torch']}" for run in trained]
    facts = {
        "command": command,
        "split": split,
        "trained_on": list(dict.fromkeys(places)),
        "baseline": baseline["system"],
        "signature": baseline["signature"],
        "jobs": max(run["jobs"] for run in trained),
        "failed": list(failed),
    }
    if len({result["seeds"] for result in results}) > 1 and "seeds" not in columns:
        columns = ("seeds", *columns)
    rows = shown(results, columns)
    table = markdown(rows, notes(facts, results, columns), command, failed)
    said = {r["system"]: r.pop("outputs")[0] for r in results}
    files.write(out / "table.md", table)
    files.write(out / "table.tex", latex(rows))
    files.write(out / "table.csv", comma_separated(results))
    others = [label for label in said if label not in alike]
    page = side_by_side(pairs, {label: said[label] for label in alike}, split, others)
    files.write(out / "outputs.md", page)
    files.write(out / "results.json", json.dumps({**facts, "systems": results}, indent=1) + "\n")
    draw_curves(
        {label: [run.folder for run in mine] for label, mine in systems.items()}, out, theme
    )
    draw_quality([run.system for run in runs], results, out, theme)
    return table


def paired(one: dict[str, Any], other: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What two systems said with the seeds that both have."""
    said = [
        {
            run["seed"]: outputs
            for run, outputs in zip(system["runs"], system["outputs"], strict=True)
        }
        for system in (one, other)
    ]
    shared = [seed for seed in said[0] if seed in said[1]]
    return [said[0][seed] for seed in shared], [said[1][seed] for seed in shared]


def same_sentences(
    systems: Mapping[str, Sequence[Run]], split: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """The first system's sentences, and which systems were measured on the same ones."""
    data = {label: mine[0].config.data for label, mine in systems.items()}
    pairs = {table: corpus.load(table)[split] for table in set(data.values())}
    first = pairs[next(iter(data.values()))]
    return first, [label for label, table in data.items() if pairs[table] == first]


def collect(label: str, runs: Sequence[Run], split: str) -> dict[str, Any]:
    """The figures of one system, with those of each of its runs."""
    cards = [files.record(run.folder / "card.json") for run in runs]
    found = [files.record(run.folder / f"evaluation-{split}.json") for run in runs]
    first = [evaluation["results"][0] for evaluation in found]
    figures = {
        **summaries(first, "bleu_lower", "bleu_lower_longest", "bleu", "chrf", "exact_match"),
        **summaries(found, "perplexity", "bits_per_character", "cache_bytes_per_token"),
        **summaries(
            [card["figures"] for card in cards],
            *(
                "val_loss",
                "parameters",
                "learned_parameters",
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
        "beam": first[0]["beam"],
        "signature": first[0]["signatures"]["bleu_lower"],
        "runs": [
            {
                "seed": run.seed,
                "device": card["device"],
                "versions": card["versions"],
                "jobs": card.get("jobs", 1),  # a card of an earlier version lacks it
                "figures": card["figures"],
                **without(evaluation, "split", "results"),
                "results": [without(r, "outputs", "lengths") for r in evaluation["results"]],
            }
            for run, card, evaluation in zip(runs, cards, found, strict=True)
        ],
        "outputs": [result["outputs"] for result in first],
    }


def summaries(records: Sequence[dict[str, Any]], *names: str) -> dict[str, Any]:
    """Of each figure; None where a file of an earlier version lacks it."""
    known = [name for name in names if all(name in record for record in records)]
    found = {name: asdict(Summary.of([record[name] for record in records])) for name in known}
    return dict.fromkeys(names) | found


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}


def notes(
    facts: dict[str, Any], results: Sequence[dict[str, Any]], columns: Sequence[str]
) -> list[str]:
    """What a reader of the table should know."""
    counts = sorted({result["seeds"] for result in results})
    width, jobs = results[0]["beam"], facts["jobs"]
    told = [
        f"{' or '.join(map(str, counts))} {'seed' if counts == [1] else 'seeds'}",
        f"{facts['split']} split, {'greedy' if width == 1 else f'beam {width}'}",
        f"sacreBLEU `{facts['signature']}`",
    ]
    words = {"baseline": facts["baseline"], "rounds": ROUNDS}
    told += [COLUMNS[name].note.format(**words) for name in columns if COLUMNS[name].note]
    if jobs > 1 and set(columns) & set(TIMED):
        told.append(f"up to {jobs} runs shared the device, so times of training do not compare")
    return [*told, " and ".join(facts["trained_on"])]
