"""NaN and infinity in a model's output are an error in every search, never an output."""

from functools import partial

import pytest
import torch

from regard.errors import NotFiniteError
from regard.search import beam, greedy, sample

VOCAB, LENGTHS, MAX_LENGTHS = 11, (7, 2, 5), (9, 4, 2)
SEARCHES = {
    "greedy": greedy,
    "sample": partial(sample, seeds=[3, 1, 4]),
    "sample, top-k and top-p": partial(sample, seeds=[3, 1, 4], top_k=3, top_p=0.9),
    "beam": partial(beam, beam_size=3),
    "nbest": partial(beam, beam_size=13, nbest=13),
}
NAMES = ["gru", "input-feeding", "transformer", "grouped-window", "latent"]


@pytest.mark.parametrize("search", SEARCHES)
def test_damaged_weights(build_model, random_sources, search):
    for name in NAMES:
        model, batch = build_model(name, VOCAB), random_sources(VOCAB, LENGTHS)
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
        for check_every in (1, 4):
            with pytest.raises(NotFiniteError, match="the model's output is not finite"):
                SEARCHES[search](
                    model, model.encode(*batch), torch.tensor(MAX_LENGTHS), check_every=check_every
                )


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_row_of_logits(build_model, random_sources, search, value):
    """Plus infinity in one logit, or minus infinity in all, has no softmax."""
    for step in (0, 3):
        model, batch = build_model("gru", VOCAB), random_sources(VOCAB, LENGTHS)
        project, steps = model.project, []

        def damage(features, project=project, steps=steps, step=step):
            logits = project(features)
            if len(steps) == step:
                logits[0, slice(None) if value < 0 else 5] = value
            logits[:, 2] -= 50  # EOS: no output ends before
            steps.append(logits)
            return logits

        model.project = damage
        with pytest.raises(NotFiniteError):
            SEARCHES[search](model, model.encode(*batch), torch.tensor(MAX_LENGTHS))
