"""The figures on results/README.md are those of the folders beside it."""

import csv
import json
import math
import re
from pathlib import Path
from statistics import mean, stdev, variance

import pytest

from regard import presets
from regard.config.defaults import choose_values
from regard.statistics import welch_p

RESULTS = Path(__file__).parents[1] / "results"
VOCAB = 5_908
TOKENS = {"val": (14_445, 1_014), "test": (14_063, 1_000)}  # target tokens, sentences
T_95 = 4.30  # Student's t with two degrees of freedom: three seeds


@pytest.fixture(scope="module")
def page() -> str:
    return (RESULTS / "README.md").read_text("utf-8")


@pytest.fixture
def table(page):
    """The cells of the one table whose header has all of these cells: {its first `key` cells: the others}."""

    def find(*header: str, key: int = 1) -> dict[tuple[str, ...], list[str]]:
        blocks = re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
        rows = [
            [[c.strip(" *") for c in line.split("|")[1:-1]] for line in b.splitlines()]
            for b in blocks
        ]
        [found] = [body for head, _, *body in rows if set(header) <= set(head)]
        return {tuple(row[:key]): row[key:] for row in found}

    return find


def runs_of(name: str) -> dict[str, list[dict]]:
    systems = json.loads((RESULTS / name / "results.json").read_text("utf-8"))["systems"]
    return {system["system"]: system["runs"] for system in systems}


def scores(runs: list[dict], beam: int, metric: str = "bleu_lower") -> list[float]:
    return [result[metric] for run in runs for result in run["results"] if result["beam"] == beam]


def losses(runs: list[dict], split: str) -> list[float]:
    return [run["figures"]["val_loss"] if split == "val" else run["loss"] for run in runs]


def notebooks_loss(nll: float, split: str) -> float:
    tokens, sentences = TOKENS[split]
    return (tokens * nll + sentences * math.log(VOCAB)) / (tokens + sentences)


def prediction_interval(values: list[float]) -> tuple[float, float]:
    """Where one more run is expected with 95 %."""
    half = T_95 * stdev(values) * math.sqrt(1 + 1 / len(values))
    return mean(values) - half, mean(values) + half


def test_bleu_of_the_homeworks_table(table):
    rows = table("second table", "greedy")
    for system, runs in runs_of("homework-notebook").items():
        beam, greedy = scores(runs, 50), scores(runs, 1)
        expected = [f"{mean(beam):.2f}", f"{variance(beam):.3f}"]
        expected += [f"{mean(greedy):.2f}", f"{variance(greedy):.3f}"]
        assert rows[(system.removeprefix("score "),)][2:6] == expected


@pytest.mark.parametrize(("split", "published"), [("val", "homework"), ("test", "second table")])
def test_losses_of_the_homeworks_table(table, split, published):
    rows = table(published, f"{published}, corrected")
    tokens, sentences = TOKENS[split]
    for system, runs in runs_of("homework-notebook").items():
        theirs, formula, corrected, ours, spread, _ = rows[(system.removeprefix("score "),)]
        values = losses(runs, split)
        assert (ours, spread) == (f"{mean(values):.3f}", f"{variance(values):.5f}")
        assert formula == f"{notebooks_loss(mean(values), split):.3f}"
        nll = ((tokens + sentences) * float(theirs) - sentences * math.log(VOCAB)) / tokens
        assert corrected == f"{nll:.2f}"


def test_which_public_table_is_reproduced(page, table):
    rows = table("second table", "greedy")
    validation, test = table("homework", "homework, corrected"), table("second table, corrected")
    inside = {"homework": [], "second": [], "homework loss": [], "second loss": []}
    for system, runs in runs_of("homework-notebook").items():
        row = (system.removeprefix("score "),)
        cases = [
            ("homework", rows[row][0], scores(runs, 50)),
            ("second", rows[row][1], scores(runs, 50)),
        ]
        for name, split, losses_table in (
            ("homework", "val", validation),
            ("second", "test", test),
        ):
            values = [notebooks_loss(value, split) for value in losses(runs, split)]
            cases.append((f"{name} loss", losses_table[row][0], values))
        for name, theirs, values in cases:
            low, high = prediction_interval(values)
            inside[name].append(low <= float(theirs) <= high)
        low, high = prediction_interval(scores(runs, 50))
        assert f"{low:.1f} to {high:.1f}" in page
    assert inside["homework"] == [False, False, False]
    assert inside["second"] == [True, True, True]
    assert inside["homework loss"] == [False, False, False]
    assert inside["second loss"] == [True, False, True]


def test_beams(table):
    [runs] = runs_of("gru-beams").values()
    rows = table("beam", "variance", "chrF")
    assert [int(beam) for (beam,) in rows] == [1, 5, 10, 20, 50]
    for (beam,), cells in rows.items():
        bleu_lower, bleu, chrf = (
            scores(runs, int(beam), metric) for metric in ("bleu_lower", "bleu", "chrf")
        )
        expected = [f"{mean(bleu_lower):.2f}", f"{variance(bleu_lower):.3f}"]
        assert cells == [*expected, f"{mean(bleu):.2f}", f"{mean(chrf):.2f}"]


def test_prefix(table):
    systems, rows = runs_of("prefix"), table("source", "longest fifth")
    causal = systems["attention_mask causal"]
    for system, runs in systems.items():
        greedy, beam = scores(runs, 1), scores(runs, 5)
        cells = rows[(system.removeprefix("attention_mask "),)]
        assert cells[:2] == [f"{mean(greedy):.2f}", f"{variance(greedy):.3f}"]
        assert cells[4:6] == [f"{mean(beam):.2f}", f"{variance(beam):.3f}"]
        assert cells[7] == f"{mean(scores(runs, 1, 'bleu_lower_longest')):.2f}"
        assert cells[8] == f"{mean(losses(runs, 'val')):.3f}"
        assert cells[9] == f"{mean(run['perplexity'] for run in runs):.2f}"
    prefix = systems["attention_mask prefix"]
    for cell, beam in ((3, 1), (6, 5)):
        p = welch_p(scores(causal, beam), scores(prefix, beam))
        assert rows[("prefix",)][cell] == f"{p:.2f}"


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def test_little_data(table):
    folders = "little-data", "back-translation"
    systems = {name: runs for folder in folders for name, runs in runs_of(folder).items()}
    rows, small = table("ensemble, greedy"), table("beam 5", "seeds, beam 5")
    assert {name.strip("`") for (name,) in (*rows, *small)} == systems.keys()
    for (name,), cells in (*rows.items(), *small.items()):
        runs = systems[name.strip("`")]
        means = [f"{mean(scores(runs, beam)):.2f}" for beam in (1, 5)]
        if (name,) in small:
            assert cells == [*means, spread(scores(runs, 5))]
            continue
        files = (RESULTS / folder / f"ensemble-{name.strip('`')}.json" for folder in folders)
        ensemble = ["", ""]
        for path in filter(Path.is_file, files):
            results = json.loads(path.read_text("utf-8"))["results"]
            ensemble = [f"{result['bleu_lower']:.2f}" for result in results]
        assert cells == [*means, spread(scores(runs, 1)), *ensemble]


def test_few_pairs(table):
    fractions = {"500": "0.01725", "2,000": "0.06897"}
    rows = table("pairs of Multi30k", "seconds", key=2)
    assert len(rows) == len(few_pairs_systems()) == 6
    for (pairs, name), cells in rows.items():
        runs = few_pairs_systems()[f"{name.strip('`')}, fraction {fractions[pairs]}"]
        seconds = f"{mean(run['figures']['training_seconds'] for run in runs):.0f}"
        if name == "`back-translation-cpu`":
            seconds = ""  # other work ran beside it
        greedy, beam = scores(runs, 1), scores(runs, 5)
        assert cells == [f"{mean(greedy):.2f}", spread(greedy), f"{mean(beam):.2f}", seconds]


def test_little_data_on_the_validation_set(table):
    with open(RESULTS / "little-data" / "pairs" / "validation.csv") as file:
        runs = list(csv.DictReader(file))
    rows = table("R-Drop", "BPE-dropout", key=4)
    assert len(rows) == len(runs)
    for run in runs:
        weights = [f"{float(run[name]):g}" for name in ("r_drop", "bpe_dropout")]
        cells = rows[(f"{int(run['pairs']):,}", run["epochs"], *weights)]
        assert cells == [
            f"{float(run[k]):.{n}f}" for k, n in (("bits_per_character", 3), ("bleu_lower", 2))
        ]


def test_the_papers_protocol(table):
    plain, r_drop = runs_of("papers"), runs_of("papers-r-drop")
    systems = {
        "`multi30k-paper-en-de`": r_drop["paper-r-drop-long"],
        "`multi30k-paper-en-de`, 36 epochs without R-Drop": plain["multi30k-paper-en-de"],
        "`multi30k-paper-en-fr`": plain["multi30k-paper-en-fr"],
    }
    rows = table("published", "seeds")
    assert {name for (name,) in rows} == systems.keys()
    for name, runs in systems.items():
        bleu = scores(runs, 5, "bleu_tokens")
        assert rows[(name,)][:2] == [f"{mean(bleu):.2f}", spread(bleu)]
    val = table("validation, beam 5").values()
    chosen_from = runs_of("papers-r-drop/val").values()
    assert [bleu for [bleu] in val] == [
        f"{scores(runs, 5, 'bleu_tokens')[0]:.2f}" for runs in chosen_from
    ]


def test_the_preset_of_the_papers_is_what_was_run():
    """All that decides about the result; a seed is none of it."""
    card = json.loads(
        (RESULTS / "papers-r-drop" / "cards" / "paper-r-drop-long-seed-1.json").read_text("utf-8")
    )
    config = presets.load("multi30k-paper-en-de").model_dump(mode="json")
    for section in ("model", "training", "tokenizer"):
        changed = {k for k, v in card["config"][section].items() if config[section][k] != v}
        assert not changed, section


def test_long_sequences():
    page = (RESULTS / "speed.md").read_text("utf-8")
    wanted = {"2048-8192": (2048, 8192), "32768": (32_768,)}
    count = 0
    for name, lengths in wanted.items():
        text = (RESULTS / "long" / f"{name}.json").read_text("utf-8")
        for row in json.loads(text)["rows"]:
            if row["length"] not in lengths:
                continue
            is_baseline = row["contender"].startswith("PyTorch")
            contender = "PyTorch's fused causal attention" if is_baseline else row["contender"]
            low, high = row["ratio_range"]
            ratio = "1.00" if is_baseline else f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})"
            cells = f"{row['length']:,} | {contender} | {row['median'] / 1e6:.2f} M | {ratio}"
            assert f"| {cells} | {row['peak_mib']:,.0f} | {row['matrix_mib']:,.0f} |\n" in page
            count += 1
    assert count == 22


def test_text_larger_than_memory():
    page = (RESULTS / "speed.md").read_text("utf-8")
    documents = [
        json.loads((RESULTS / "large-data" / f"{n}-million.json").read_text("utf-8"))
        for n in (1, 3, 10)
    ]
    for stages in zip(*(document["rows"] for document in documents), strict=True):
        cells = (f"{stage['seconds']:.1f} s | {stage['peak_mib']:.0f} MiB" for stage in stages)
        assert f" | {' | '.join(cells)} |\n" in page
    peaks = [max(row["peak_mib"] for row in document["rows"]) for document in documents]
    assert peaks[2] < 1.05 * peaks[0]  # flat in the number of pairs


LITTLE_DATA = [
    ("back-translation", "both", 1, "0.02"),
    ("back-translation", "second-round", 1, "0.15"),
    ("multi30k-transformer", "distilled", 1, "0.07"),
    ("multi30k-transformer", "r-drop", 5, "0.31"),
    ("multi30k-transformer-cpu", "cpu-distilled", 1, "0.02"),
]


def little_data(one: str, other: str, beam: int, p: str) -> tuple[list[float], list[float], str]:
    systems = runs_of("little-data") | runs_of("back-translation")
    return scores(systems[one], beam), scores(systems[other], beam), p


def few_pairs_systems() -> dict[str, list[dict]]:
    captions = runs_of("few-pairs-captions").items()
    return runs_of("few-pairs") | {f"back-translation-cpu, {name}": runs for name, runs in captions}


FEW_PAIRS = [
    ("plain, fraction 0.01725", "regularised, fraction 0.01725", 1, "0.01"),
    ("plain, fraction 0.06897", "regularised, fraction 0.06897", 1, "0.04"),
    *(
        (f"{name}, fraction {fraction}", f"back-translation-cpu, fraction {fraction}", 1, "0.00")
        for name in ("plain", "regularised")
        for fraction in ("0.01725", "0.06897")
    ),
    ("plain, fraction 0.06897", "back-translation-cpu, fraction 0.01725", 1, "0.79"),
    ("plain, fraction 0.06897", "back-translation-cpu, fraction 0.01725", 5, "0.05"),
]


def test_welch_of_the_new_tables(page):
    notebook, [gru] = runs_of("homework-notebook"), runs_of("gru-beams").values()
    dummy, uniform = notebook["score dummy"], notebook["score mean"]
    homework = runs_of("homework")["score scaled-dot"]
    causal, prefix = runs_of("prefix").values()
    few = few_pairs_systems()
    pairs = [
        (scores(dummy, 50), scores(uniform, 50), "0.01"),
        (scores(dummy, 1), scores(uniform, 1), "0.61"),
        (scores(gru, 5), scores(gru, 50), "0.22"),
        (scores(homework, 1), scores(gru, 1), "0.45"),
        (*(scores(runs, 1, "bleu_lower_longest") for runs in (causal, prefix)), "0.18"),
        *(little_data(*each) for each in LITTLE_DATA),
        *((scores(few[a], n), scores(few[b], n), p) for a, b, n, p in FEW_PAIRS),
    ]
    for one, other, published in pairs:
        assert f"{welch_p(one, other):.2f}" == published
        assert f"Welch p = {published}" in page


def test_tuning_of_mamba(table):
    runs = json.loads((RESULTS / "mamba-tuning" / "losses.json").read_text("utf-8"))
    rows = list(table("trained for", key=4).items())[1:]  # the first is the earlier preset
    for run, (setting, cells) in zip(runs, rows, strict=True):
        assert [float(cell) for cell in setting[:3]] == [
            run["epochs"],
            run["dropout"],
            run["learning_rate"],
        ]
        epoch, loss = min(run["validations"], key=lambda validation: validation[1])
        assert float(setting[3]) == pytest.approx(run["validations"][-1][0], abs=0.05)
        assert cells[:2] == [f"{loss:.3f}", f"{epoch:.1f}"]
        assert cells[2].startswith("complete") == run["complete"]
        falling = run["validations"][-1] == [epoch, loss]
        assert run["complete"] or cells[2].endswith("while falling") == falling


def test_preset_of_mamba_has_the_setting_with_the_lowest_validation_loss():
    runs = json.loads((RESULTS / "mamba-tuning" / "losses.json").read_text("utf-8"))
    best = min(runs, key=lambda run: min(loss for _, loss in run["validations"]))
    config = presets.load("multi30k-mamba")
    chosen = (config.training.epochs, config.model.dropout, config.training.learning_rate)
    assert chosen == (best["epochs"], best["dropout"], best["learning_rate"])


def test_rule_for_own_data(table):
    with (RESULTS / "own-data" / "rule.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    bleu = {(r["pairs"], r["corpus"], r["change"]): float(r["val_bleu_lower"]) for r in rows}
    names = [f"{key} {f}" for key in ("width", "vocab", "batch", "epochs") for f in ("×0.5", "×2")]
    cells = table("the rule", "epochs 2")
    rules = [row for row in rows if row["change"] == "rule"]
    assert len(cells) == len(rules)
    for (name,), (rule, *changes, test) in cells.items():
        pairs, corpus = name.replace(",", "").rstrip(")").lower().split(" (")
        [row] = [r for r in rules if (r["pairs"], r["corpus"]) == (pairs, corpus)]
        assert (rule, test) == (row["val_bleu_lower"], row["test_bleu_lower_beam_5"])
        for change, cell in zip(names, changes, strict=True):
            other = bleu.get((pairs, corpus, change))
            assert cell == ("" if other is None else f"{other - bleu[pairs, corpus, 'rule']:+.2f}")


def test_rule_for_own_data_is_the_one_that_was_measured():
    with (RESULTS / "own-data" / "rule.csv").open(encoding="utf-8") as file:
        rules = [row for row in csv.DictReader(file) if row["change"] == "rule"]
    config = presets.validate({"data": {"kind": "files", "train": "a", "val": "b"}}, "test")
    for row in rules:
        values = choose_values(config, int(row["pairs"]))
        assert values["model.hidden_dim"] == int(row["width"])
        assert values["tokenizer.vocab_size"] == int(row["vocab_size"])
        assert values["training.batch_sentences"] == int(row["batch_sentences"])
        assert values["training.epochs"] == float(row["epochs"])
        assert values["model.dropout"] == float(row["dropout"])
