"""What workers compute: each function answers the inputs of several requests with one pass of the model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.api import Translator
from regard.errors import UserError
from regard.intervention_checks import constrain_output
from regard.models.intervene import intervene
from regard.page import schema
from regard.search import greedy, watch
from regard.search.state import WATCH, Search
from regard.serve.tree import BeamRecorder
from regard.text.batch import EncodedPairs, pad
from regard.text.vocabulary import BOS, PAD
from regard.translation import Decoding, Sampling, Translation

Pair = tuple[str, str]


@dataclass(frozen=True)
class Texts:
    """Texts to translate."""

    texts: Sequence[str]
    decoding: Decoding


@dataclass(frozen=True)
class ScorePairs:
    pairs: Sequence[Pair]
    attention: bool
    interventions: tuple[Any, ...]


@dataclass(frozen=True)
class Streamed:
    """A text, and what to do with the id of each token."""

    text: str
    emit: Callable[[int], object]


def to_decoding(given: schema.Decoding, attention: bool, interventions: Sequence[Any]) -> Decoding:
    """The decoding of a request; a `UserError` if its parts do not go together."""
    sampling = given.sample and Sampling(**given.sample.model_dump())
    return Decoding(given.beam, given.nbest, sampling, attention, None, tuple(interventions))


def batch_key(decoding: Decoding) -> Decoding | None:
    """Requests with equal keys share a batch. Samples depend on the number of a text in its request."""
    return None if decoding.sample else decoding


# --- several requests at once ---------------------------------------------------------------------


def translate(translator: Translator, inputs: Sequence[Texts]) -> list[Any]:
    """The translations of each input."""
    options = vars(inputs[0].decoding)

    def check(given: Texts) -> None:
        for number, text in enumerate(given.texts, start=1):
            ids = translator.encode_source(text, f"text {number}")
            translator.check_lengths(EncodedPairs([ids], [[]]))

    def compute(texts: list[str]) -> list[Translation]:
        return translator.translate(texts, **options)

    return together(inputs, check, lambda given: given.texts, compute)


def score(translator: Translator, inputs: Sequence[ScorePairs]) -> list[Any]:
    """The scored pairs of each input."""
    options = {"attention": inputs[0].attention, "interventions": inputs[0].interventions}
    return together(
        inputs,
        lambda given: translator.encode_pairs(given.pairs),
        lambda given: given.pairs,
        lambda pairs: translator.score(pairs, **options),
    )


def explain(translator: Translator, inputs: Sequence[ScorePairs]) -> list[Any]:
    """The given translations of each input, with scores and attention."""
    interventions = inputs[0].interventions
    return together(
        inputs,
        lambda given: translator.encode_pairs(given.pairs),
        lambda given: given.pairs,
        lambda pairs: translator.explain(pairs, interventions=interventions),
    )


def together(
    inputs: Sequence[Any],
    check: Callable[[Any], object],
    parts: Callable[[Any], Sequence[Any]],
    compute: Callable[[list[Any]], Sequence[Any]],
) -> list[Any]:
    """The outputs of each input, or its error: those that pass the check share one call of `compute`."""
    results: list[Any] = [find_error(lambda one=one: check(one)) for one in inputs]
    valid = [row for row, error in enumerate(results) if error is None]
    if not valid:
        return results
    try:
        outputs = iter(compute([part for row in valid for part in parts(inputs[row])]))
    except UserError as error:
        for row in valid:  # whose is it?
            alone = [inputs[row]]
            [results[row]] = [error] if len(valid) == 1 else together(alone, check, parts, compute)
    else:
        for row in valid:
            results[row] = [next(outputs) for _ in parts(inputs[row])]
    return results


def find_error(call: Callable[[], object]) -> UserError | None:
    try:
        call()
    except UserError as error:
        return error
    return None


@torch.inference_mode()
def stream(translator: Translator, inputs: Sequence[Streamed]) -> list[Any]:
    """Greedy translations; `emit` gets each token as it is chosen."""
    errors = [
        find_error(
            lambda one=one: translator.check_lengths(
                EncodedPairs([translator.encode_source(one.text, "the text")], [[]])
            )
        )
        for one in inputs
    ]
    given = [one for one, error in zip(inputs, errors, strict=True) if error is None]
    outputs = iter(stream_encodable(translator, given) if given else [])
    return [next(outputs) if error is None else error for error in errors]


def stream_encodable(translator: Translator, inputs: Sequence[Streamed]) -> list[Any]:
    model, device, tokenizers = translator.model, translator.device, translator.tokenizers
    sources = [translator.encode_source(one.text, "the text") for one in inputs]
    source, mask = (x.to(device) for x in pad(sources))
    limits = [translator.max_output_length(len(ids)) for ids in sources]
    give_up = WATCH.get()

    def emit(search: Search, live: Mapping[int, int]) -> None:
        """The last token of each output that was not done before it."""
        tokens = search.tokens.tolist()
        for row, sentence in live.items():
            inputs[sentence].emit(tokens[row])
        if give_up is not None:
            give_up(search, live)

    max_lengths = torch.tensor(limits, device=device)
    with watch(emit):
        found = greedy(model, model.encode(source, mask), max_lengths, check_every=1)
    return [
        Translation(
            tokenizers.target.decode(one.ids),
            tokenizers.source.ids_to_tokens(ids),
            tokenizers.target.ids_to_tokens(one.ids),
            one.score,
            one.normalised,
        )
        for ids, one in zip(sources, found, strict=True)
    ]


# --- the page -------------------------------------------------------------------------------------


def answer_page(translator: Translator, inputs: Sequence[Any]) -> list[Any]:
    """The answer to one request of the page, as its own engine (engine/worker.js) gives it."""
    return [answer_one(translator, request) for request in inputs]


def answer_one(
    translator: Translator, request: schema.TranslateRequest | schema.ExplainRequest
) -> schema.Translation | UserError:
    started = time.perf_counter()
    interventions, more = request.interventions, {}
    try:
        if isinstance(request, schema.ExplainRequest):
            pair = (request.text, request.target)
            [output] = translator.explain([pair], interventions=interventions)
        else:
            decoding = to_decoding(request.decoding, True, interventions)
            [output] = translator.translate([request.text], **vars(decoding))
        searched = time.perf_counter()
        source = translator.encode_source(request.text, "the text")
        if isinstance(request, schema.TranslateRequest) and request.decoding.beam > 1:
            more["tree"] = record_tree(translator, source, request, output)
        described = [
            schema.Translation.of(
                one, steps=list_steps(translator, source, one.ids, interventions, request.best)
            )
            for one in (replace(output, alternatives=[]), *output.alternatives)
        ]
    except UserError as error:
        return error
    milliseconds = {
        "search": 1000 * (searched - started),
        "attention": 1000 * (time.perf_counter() - searched),
    }
    return described[0].model_copy(
        update={"alternatives": tuple(described[1:]), "milliseconds": milliseconds, **more}
    )


def encode(translator: Translator, source: list[int]) -> Any:
    ids, mask = (x.to(translator.device) for x in pad([source]))
    return translator.model.encode(ids, mask)


@torch.inference_mode()
def list_steps(
    translator: Translator, source: list[int], ids: list[int], interventions: Any, best: int
) -> tuple[schema.Step, ...]:
    """Each token of an output with its log-probability, and the most probable ones of its step."""
    model, name = translator.model, translator.tokenizers.target.ids_to_tokens
    target = torch.tensor([[BOS, *ids[:-1]]], device=translator.device)
    with intervene(model, interventions):
        features = model.features(encode(translator, source), target)
    log_probs = model.project(features)[0].float().log_softmax(-1)
    chosen = log_probs.gather(1, torch.tensor(ids, device=translator.device)[:, None])[:, 0]
    log_probs[:, [PAD, BOS]] = float("-inf")
    values, tokens = log_probs.topk(min(best, log_probs.shape[1]))
    return tuple(
        schema.Step(
            token=token,
            log_prob=log_prob,
            best=tuple(
                schema.Candidate(token=name([other])[0], log_prob=value)
                for other, value in zip(others, row, strict=True)
            ),
        )
        for token, log_prob, others, row in zip(
            name(ids), chosen.tolist(), tokens.tolist(), values.tolist(), strict=True
        )
    )


@torch.inference_mode()
def record_tree(
    translator: Translator,
    source: list[int],
    request: schema.TranslateRequest,
    output: Translation,
) -> tuple[schema.Node, ...]:
    target = translator.tokenizers.target
    recorder = BeamRecorder(
        translator.model,
        request.decoding.beam,
        request.decoding.nbest,
        translator.max_output_length(len(source)),
        translator.config.search.length_penalty,
        constrain_output(request.interventions, target),
    )
    with intervene(translator.model, request.interventions):
        return recorder.record(encode(translator, source), target, output.ids)
