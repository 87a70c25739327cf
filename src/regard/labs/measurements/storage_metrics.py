"""Measurements for `storage`: states exchanged between sentences, probes, changes, gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from regard.labs.measurements.case_task import Pair
from regard.models import Model
from regard.models.recurrent import Recurrent, RecurrentMemory
from regard.search import Hypothesis, greedy
from regard.text.batch import Batch, EncodedPairs, pad
from regard.text.tokenizer import BOS, EOS, TokenizerPair

Rows = Int[Tensor, " rows"]


# --- exchange states ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentences:
    """Sentences of one length, encoded by a model, with two donors of states for each."""

    pairs: Sequence[Pair]
    model: Recurrent
    tokenizers: TokenizerPair
    memory: RecurrentMemory
    donors: dict[str, Rows]  # by the case that the donor asks for: "same case", "other case"

    @classmethod
    def encode(
        cls, pairs: Sequence[Pair], model: Recurrent, tokenizers: TokenizerPair
    ) -> "Sentences":
        data = EncodedPairs.from_pairs(pairs, tokenizers)
        batch = data.batch(range(len(data)))
        with torch.inference_mode():
            memory = model.encode(batch.source, batch.source_mask)
        symbols = [source.split()[0] for source, _ in pairs]
        donors = {
            "same case": [next_row(symbols, i, same=True) for i in range(len(pairs))],
            "other case": [next_row(symbols, i, same=False) for i in range(len(pairs))],
        }
        rows = {case: torch.tensor(indices) for case, indices in donors.items()}
        return cls(pairs, model, tokenizers, memory, rows)

    def generate(self, start: str, states: str) -> list[list[int]]:
        """Greedy outputs from the start state and the encoder states of: "own", a donor, or "zeros"."""
        memory = replace(
            self.memory,
            initial=self._take(self.memory.initial, start),
            states=self._take(self.memory.states, states),
        )
        limits = torch.full((len(self.pairs),), len(self.pairs[0][1]) + 1)
        return [output.ids for output in greedy(self.model, memory, limits)]

    def _take(self, part: Tensor, owner: str) -> Tensor:
        if owner == "zeros":
            return torch.zeros_like(part)
        return part if owner == "own" else part[self.donors[owner]]


def next_row(symbols: Sequence[str], row: int, same: bool) -> int:
    """The next row, cyclically, whose symbol is the same as this row's, or another; itself if none is."""
    count = len(symbols)
    rows = ((row + step) % count for step in range(1, count))
    return next((other for other in rows if (symbols[other] == symbols[row]) == same), row)


@dataclass(frozen=True)
class Shares:
    """Shares of the letters of all references: the own letter, the donor's, own or other case."""

    own_letters: float
    donor_letters: float
    own_case: float
    other_case: float


def compare(sentences: Sentences, outputs: list[list[int]], donor: str) -> Shares:
    """Outputs position by position with the references of the sentence and of its donor."""
    pieces = {id_: piece for piece, id_ in sentences.tokenizers.target.piece_to_id.items()}
    targets = [target for _, target in sentences.pairs]
    rows = sentences.donors[donor].tolist()
    length = len(targets[0])
    counts = [0, 0, 0, 0]
    for output, target, row in zip(outputs, targets, rows, strict=True):
        letters = [pieces.get(id_, "") for id_ in output]
        counts[0] += sum(a.lower() == b.lower() for a, b in zip(letters, target, strict=False))
        counts[1] += sum(
            a.lower() == b.lower() for a, b in zip(letters, targets[row], strict=False)
        )
        cases = [a.isupper() == target.isupper() for a in letters[:length] if a]
        counts[2] += sum(cases)
        counts[3] += len(cases) - sum(cases)
    return Shares(*(count / (length * len(targets)) for count in counts))


# --- probes ---------------------------------------------------------------------------------------

States = Float[Tensor, "rows dim"]
Labels = Int[Tensor, " rows"]


def probe(train_states: States, train_labels: Labels, states: States) -> Labels:
    """Argmax over classes of W h + b, with W, b the least-squares fit to one-hot labels"""
    one_hot = torch.nn.functional.one_hot(train_labels).double()
    train, test = (
        torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
        for x in (train_states, states)
    )
    return (test @ (torch.linalg.pinv(train) @ one_hot)).argmax(1)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy on the sentences of the second half, and that of a probe fitted to shuffled labels."""

    accuracy: float
    shuffled: float

    @classmethod
    def measure(
        cls, states: States, labels: Labels, sentence: Rows, generator: Generator
    ) -> "ProbeResult":
        first_half = sentence < (sentence.max() + 1) // 2
        train = states[first_half], labels[first_half]
        shuffled = train[1][torch.randperm(len(train[1]), generator=generator)]
        predictions = (
            probe(train[0], fitted, states[~first_half]) for fitted in (train[1], shuffled)
        )
        return cls(*(float((p == labels[~first_half]).double().mean()) for p in predictions))


def measure_probes(
    model: Model, tokenizers: TokenizerPair, pairs: Sequence[Pair], generator: Generator
) -> dict[str, ProbeResult]:
    """What can be read off the encoder states at the letters, and off the start state."""
    batch = EncodedPairs.from_pairs(pairs, tokenizers).batch(range(len(pairs)))
    with torch.inference_mode():
        memory = model.encode(batch.source, batch.source_mask)
    assert isinstance(memory, RecurrentMemory)
    is_letter = letter_mask(batch)
    sentence, position = is_letter.nonzero(as_tuple=True)
    texts = [target.lower() for _, target in pairs]
    alphabet = sorted({letter for text in texts for letter in text})
    letters, firsts, lasts = (
        torch.tensor([alphabet.index(letter) for letter in chosen])
        for chosen in ("".join(texts), [t[0] for t in texts], [t[-1] for t in texts])
    )
    case = torch.tensor([int(source.startswith("<U>")) for source, _ in pairs])
    states, start, rows = memory.states[is_letter], memory.initial[:, -1], torch.arange(len(pairs))
    inputs = {
        "encoder state: position": (states, position - 1, sentence),
        "encoder state: letter": (states, letters, sentence),
        "encoder state: case": (states, case[sentence], sentence),
        "start state: case": (start, case, rows),
        "start state: first letter": (start, firsts, rows),
        "start state: last letter": (start, lasts, rows),
    }
    return {name: ProbeResult.measure(*parts, generator) for name, parts in inputs.items()}


def letter_mask(batch: Batch) -> Bool[Tensor, "batch source"]:
    """True at the letters of a source: neither <U> or <L>, the first token, nor the end token."""
    mask = batch.source_mask & (batch.source != EOS)
    mask[:, 0] = False
    return mask


# --- inference ------------------------------------------------------------------------------------


def weight_digests(model: Recurrent) -> dict[str, str]:
    """SHA-256 of the bytes of each weight."""
    return {
        name: sha256(weight.detach().numpy().tobytes()).hexdigest()
        for name, weight in model.state_dict().items()
    }


def activation_changes(model: Recurrent, batch: Batch, position: int) -> dict[str, float]:
    """Largest change of each activation when the letter at one source position changes."""
    changed = batch.source.clone()
    changed[:, position] = batch.source.roll(1, 0)[:, position]
    with torch.inference_mode():
        one, other = (activations(model, batch, source) for source in (batch.source, changed))
    states = (one.pop("encoder states") - other.pop("encoder states")).abs()
    return {
        "encoder states before it": float(states[:, :position].max()),
        "encoder states from it on": float(states[:, position:].max()),
        **{name: float((one[name] - other[name]).abs().max()) for name in one},
    }


def activations(
    model: Recurrent, batch: Batch, source: Int[Tensor, "batch source"]
) -> dict[str, Tensor]:
    memory = model.encode(source, batch.source_mask)
    features = model.features(memory, batch.target)
    context, decoder_states = features.tensor_split([model.decoder.context_dim], dim=-1)
    return {
        "encoder states": memory.states,
        "start state": memory.initial,
        "decoder states": decoder_states,
        "attention context": context,
        "logits": model.project(features),
    }


# --- input and output -----------------------------------------------------------------------------


def count_unshifted(batch: Batch) -> int:
    """Target tokens for which input(i + 1) = label(i) fails, or input(0) = BOS."""
    inner = batch.target_mask[:, 1:]
    wrong = (batch.target[:, 1:] != batch.labels[:, :-1]) & inner
    return int(wrong.sum()) + int((batch.target[:, 0] != BOS).sum())


def input_gradients(model: Recurrent, batch: Batch, output: int) -> list[float]:
    """Mean norm, at each target input, of the gradient of one output's loss w.r.t. its embedding."""
    embedded: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda *args: embedded.append(args[2]))
    logits = model(batch.source, batch.source_mask, batch.target)[:, output]
    hook.remove()
    loss = torch.nn.functional.cross_entropy(logits, batch.labels[:, output], reduction="sum")
    return torch.autograd.grad(loss, embedded[0])[0].norm(dim=-1).mean(0).tolist()


def part_gradients(model: Recurrent, batch: Batch) -> dict[str, float]:
    """Norm of the gradient of the mean loss w.r.t. the weights of each part."""
    logits = model(batch.source, batch.source_mask, batch.target)[batch.target_mask]
    loss = torch.nn.functional.cross_entropy(logits, batch.labels[batch.target_mask])
    parts = {
        "source embedding": model.encoder.embedding,
        "encoder": model.encoder.forwards,
        "bridge": model.bridge,
        "attention": model.decoder.attention,
        "target embedding": model.embedding,
        "decoder": model.decoder.cells,
        "output projection": model.output,
    }
    weights = {name: list(part.parameters()) for name, part in parts.items() if part is not None}
    gradients = iter(torch.autograd.grad(loss, [w for part in weights.values() for w in part]))
    return {
        name: float(torch.cat([next(gradients).flatten() for _ in part]).norm())
        for name, part in weights.items()
    }


def own_output_differences(
    model: Recurrent, batch: Batch, outputs: Sequence[Hypothesis]
) -> list[float]:
    """Log-probability of each output: by a teacher-forced pass with that output as input, minus by search."""
    from regard.evaluation.likelihood import batch_likelihoods

    target, mask = pad([[BOS, *output.ids[:-1]] for output in outputs])
    labels, _ = pad([output.ids for output in outputs])
    own = Batch(batch.source, batch.source_mask, target, labels, mask)
    with torch.inference_mode():
        scored = batch_likelihoods(model, own)
    return [-s.nats - output.score for s, output in zip(scored, outputs, strict=True)]
