"""Several systems on one test set: ours, and others by their outputs, with paired tests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from regard.errors import UserError
from regard.evaluation.evaluate import evaluate, evaluate_outputs, source_lengths
from regard.evaluation.metrics import References, select_metrics, to_streams
from regard.text.moses import is_preprocessed
from regard.text.references import ReferenceSet
from regard.translator import Translator

SAMPLES = 1000


def evaluate_systems(
    translator: Translator | None,
    data: ReferenceSet,
    others: Mapping[str, Sequence[str]],
    beams: Sequence[int] = (1,),
) -> dict[str, Any]:
    """`evaluate`, with the quality of other systems' outputs, and the tests of all against the first.

    `others`: outputs by name. Without a translator, the first of them is the baseline. All texts are
    preprocessed, if the translator's are.
    """
    on_tokens = translator is not None and is_preprocessed(translator.config.data)
    figures: dict[str, Any] = {"sentences": len(data), "results": []}
    if translator is not None:
        figures = evaluate(translator, data.pairs, beams, references=data.references)
        figures["is_synthetic"] = translator.config.data.kind == "synthetic"
    if others:
        lengths = source_lengths(data.sources, translator)
        arguments = (data.sources, data.references, lengths, on_tokens)
        figures["hypotheses"] = [
            {"file": name, **evaluate_outputs(texts, *arguments)} for name, texts in others.items()
        ]
    systems = {name: result["outputs"] for name, result in list_systems(figures).items()}
    if others and len(systems) > 1:
        figures["tests"] = compare_systems(systems, data.references, on_tokens=on_tokens)
    return figures


def list_systems(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The results by system: the run's beam widths, then other systems."""
    ours = {f"beam {result['beam']}": result for result in figures["results"]}
    return ours | {result["file"]: result for result in figures.get("hypotheses", [])}


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: References,
    samples: int = SAMPLES,
    on_tokens: bool = False,
) -> dict[str, Any]:
    """The paired bootstrap test of every system's outputs against the first one's, by every metric that is
    defined on these texts, which are preprocessed if `on_tokens`.

    For each metric: `difference` (system minus baseline), its two-sided `p`, and the half-widths of the 95 %
    confidence intervals of both scores.
    """
    from regard.statistics import paired_bootstrap

    streams = to_streams(references)
    for name, outputs in systems.items():
        if len(outputs) != len(streams[0]):
            raise UserError(
                f"{name} has {len(outputs):,} outputs for {len(streams[0]):,} references: it needs one each"
            )
    baseline, *others = systems
    return {
        "baseline": baseline,
        "samples": samples,
        "systems": [
            {
                "system": name,
                **{
                    key: asdict(
                        paired_bootstrap(
                            measure.create(), systems[baseline], systems[name], streams, samples
                        )
                    )
                    for key, measure in select_metrics(on_tokens).items()
                },
            }
            for name in others
        ],
    }
