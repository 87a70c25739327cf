"""How much faster is a decoder vectorised over time than a loop over time? Same model, same data.

    python benchmarks/recurrent.py [--embedding 256] [--hidden 512] [--batch 128] [--rounds 6]
                                   [--vocabulary N]

Four ways to train the same weights on the case task, turn by turn:

    notebook        what course notebooks do: batches as the sentences come; at each target position
                    attention over the encoder's outputs (their keys made anew every time), one step of
                    the cell, logits for every row
    course loop     the same, on batches of sentences of about one length
    lean loop       the same, with the keys made once
    vectorised      what `regard train` does

`--vocabulary N` pretends to a larger output vocabulary, whose output map costs all of them the same.
Tokens never count padding.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard import config
from regard.models import build
from regard.models.recurrent import Recurrent
from regard.text import corpus
from regard.text.batch import Batch, Batches, Encoded
from regard.text.tokenizer import PAD, TokenizerPair
from regard.training.objective import objective
from regard.training.update import optimizer_for


def loop(model: Recurrent, batch: Batch, keys_anew: bool) -> Tensor:
    """Teacher forcing, one target position after another."""
    memory = model.encode(batch.source, batch.source_mask)
    state = model.begin(memory)
    logits = []
    for tokens in batch.target.unbind(1):
        if keys_anew and model.decoder.attention:
            state.keys = model.decoder.attention.keys(memory.states)
        row, state = model.step(tokens, state)
        logits.append(row)
    flat = torch.stack(logits, dim=1).flatten(0, 1)
    return cross_entropy(flat, batch.wanted.flatten(), ignore_index=PAD)


Loss = Callable[[Recurrent, Batch], Tensor]
SIDES: dict[str, Loss] = {
    "notebook": lambda model, batch: loop(model, batch, keys_anew=True),
    "course loop": lambda model, batch: loop(model, batch, keys_anew=True),
    "lean loop": lambda model, batch: loop(model, batch, keys_anew=False),
    "vectorised": lambda model, batch: objective(model, batch, label_smoothing=0.0),
}


def seconds(loss: Loss, model: Recurrent, batch: Batch) -> float:
    """One training step: forward, backward, clip, update."""
    optimizer = optimizer_for(model, config.Training())
    started = time.perf_counter()
    loss(model, batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - started


def spread(values: list[float], unit: str, form: str = ",.0f") -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:>9{form}} {unit}  ({low:{form}} - {high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--embedding", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--vocabulary", type=int)
    given = parser.parse_args()
    data = corpus.load(config.MadeTask(train=10_000))
    tokenizers = TokenizerPair.learn(config.Characters(), data["train"], data.symbols)
    vocabulary = max(given.vocabulary or 0, tokenizers.target.size)
    table = config.Recurrent(
        embedding=given.embedding,
        hidden=given.hidden,
        attention=config.SingleHead(kq_width=given.hidden),
    )
    torch.manual_seed(0)
    model = build(table, tokenizers.source.size, vocabulary, joint=False)
    assert isinstance(model, Recurrent)
    batches = Batches(Encoded.of(data["train"], tokenizers), 10**9, given.batch, seed=0)
    bucketed = [cut.rows for cut in batches.epoch(0) if len(cut.rows) == given.batch]
    speeds: dict[str, list[float]] = {name: [] for name in SIDES}
    for turn in range(given.rounds + 1):
        as_they_come = range(turn * given.batch, (turn + 1) * given.batch)
        for name, loss in SIDES.items():
            batch = batches.data.batch(as_they_come if name == "notebook" else bucketed[turn])
            spent = seconds(loss, model, batch)
            if turn:  # the first turn warms up
                speeds[name].append(batch.tokens / spent)
    check(model, batches.data.batch(bucketed[0]))
    print(
        f"training a GRU {given.hidden}, embedding {given.embedding}, batch {given.batch}, vocabulary "
        f"{vocabulary}, float32, {torch.get_num_threads()} threads, {given.rounds} turns"
    )
    for name, found in speeds.items():
        ratios = [ours / theirs for ours, theirs in zip(speeds["vectorised"], found, strict=True)]
        print(
            f"  {name:<12} {spread(found, 'tokens/s')}   vectorised: {spread(ratios, 'x', ',.1f')}"
        )


def check(model: Recurrent, batch: Batch) -> None:
    """All sides compute one loss."""
    with torch.no_grad():
        losses = [float(loss(model, batch)) for loss in SIDES.values()]
    assert max(losses) - min(losses) < 1e-4, f"they compute different losses: {losses}"


if __name__ == "__main__":
    main()
