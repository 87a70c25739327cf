"""Is our model better than another system? Score both on one test set, and test the difference.

    python examples/compare_systems.py RUN SOURCES REFERENCES OUTPUTS

RUN is a run folder; the files have one sentence per line, and OUTPUTS holds the other system's
translations. `regard evaluate RUN --input SOURCES --reference REFERENCES --hypotheses OUTPUTS` does the
same on the command line.
"""

import sys

import regard
from regard.evaluation import evaluate_systems
from regard.evaluation.metrics import select_metrics
from regard.evaluation.systems import list_systems
from regard.text.references import read_hypotheses, read_references


def main(run: str, sources: str, references: str, outputs: str) -> None:
    """Print a table of both systems, and where they differ."""
    model = regard.load(run)
    data = read_references(sources, [references])
    other = read_hypotheses(outputs, len(data), sources)
    report = evaluate_systems(model, data, {outputs: other}, beams=[5])

    metrics = select_metrics()
    for name, result in list_systems(report).items():
        scores = "  ".join(
            f"{metrics[key].heading} {result[key]:.2f}" for key in metrics
        )
        print(f"{name}: {scores}")

    [test] = report["tests"]["systems"]
    for key, metric in metrics.items():
        result = test[key]
        verdict = "significant" if result["p"] < 0.05 else "could be chance"
        print(
            f"{metric.heading}: {result['difference']:+.2f}, p = {result['p']:.3f}: {verdict}"
        )

    # The sentences whose reference our model finds least probable, token by token.
    scored = zip(model.score(data.pairs), data.pairs, strict=True)
    for pair, (source, reference) in sorted(
        scored, key=lambda item: -item[0].perplexity
    )[:3]:
        tokens = " ".join(
            f"{t} {p:.1f}" for t, p in zip(pair.target, pair.log_probs, strict=True)
        )
        print(f"\n{source}\n{reference}\n{tokens}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
