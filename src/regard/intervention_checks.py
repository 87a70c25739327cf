"""Do interventions fit a model and a text? Every error says what there is."""

from collections.abc import Iterable

from regard.errors import UserError, join_names, suggest
from regard.interventions import (
    AttentionIntervention,
    Force,
    Intervention,
    Mask,
    SetWeights,
)
from regard.models import Model
from regard.models.intervene import count_heads
from regard.search import Constrain, force_tokens
from regard.text.vocabulary import BOS, EOS, PAD, Tokenizer


def check_model(interventions: Iterable[Intervention], model: Model) -> None:
    """Raise an error for a mechanism, layer or head that the model lacks."""
    on_attention = [one for one in interventions if isinstance(one, AttentionIntervention)]
    heads = count_heads(model) if on_attention else {}  # (layers, heads)
    for one in on_attention:
        if one.mechanism not in heads:
            has = f"it has {join_names(heads)}" if heads else "it has no attention at all"
            raise UserError(f'{name_of(one)}: this model has no "{one.mechanism}" attention; {has}')
        counts = dict(zip(("layer", "head"), heads[one.mechanism], strict=True))
        for noun, count in counts.items():
            index = getattr(one, noun)
            if index is not None and index >= count:
                where = f"the {one.mechanism} attention of this model"
                raise UserError(f"{name_of(one)}: {outside(noun, index, count, where)}")


def check_text(
    interventions: Iterable[Intervention],
    text: str,
    source: int,
    target: int,
    *,
    given: bool = False,
) -> None:
    """Raise an error for a step or key outside a text: `source` tokens, and a target of `target` at most.

    `given`: the target is not generated but given, so that no token of it can be forced.
    """
    for one in interventions:
        if isinstance(one, Force) and given:
            raise UserError(
                f"{name_of(one)}: a given translation has its own tokens, so none can be forced; leave it "
                "out, or call translate"
            )
        of_source = f"the source of {text}"
        of_target = f"the target of {text}" if given else f"the longest output for {text}"
        queries = (
            (source, of_source)
            if getattr(one, "mechanism", "") == "encoder"
            else (target, of_target)
        )
        step = getattr(one, "step", None)
        if step is not None and step >= queries[0]:
            raise UserError(f"{name_of(one)}: {outside('step', step, *queries)}")
        check_keys(one, step, (target, of_target), (source, of_source))


def check_keys(
    one: Intervention, step: int | None, target: tuple[int, str], source: tuple[int, str]
) -> None:
    """Raise an error for a key outside the source or, in the decoder, outside its input so far."""
    if not isinstance(one, Mask | SetWeights):
        return
    count, where = target if one.mechanism == "decoder" else source
    if one.mechanism == "decoder" and step is not None:
        count, where = step + 1, f"the decoder's input at step {step}"
    for key in one.keys if isinstance(one, Mask) else one.weights:
        if key >= count:
            raise UserError(f"{name_of(one)}: {outside('key', key, count, where)}")


def constrain_output(
    interventions: Iterable[Intervention], tokenizer: Tokenizer
) -> Constrain | None:
    """The constraint of all forced tokens; None: there are none."""
    forced: dict[int, list[int]] = {}
    for one in interventions:
        if isinstance(one, Force):
            if one.step in forced:
                raise UserError(f"{name_of(one)}: two tokens are forced at step {one.step}")
            forced[one.step] = find_token(one, tokenizer)
    for step, ids in forced.items():
        if EOS in ids and step < max(forced):
            raise UserError(
                f"Force: the output ends at step {step}, and a token is forced at step {max(forced)}"
            )
    return force_tokens(forced) if forced else None


def find_token(one: Force, tokenizer: Tokenizer) -> list[int]:
    """The ids of a forced token."""
    ids = [i for i in tokenizer.token_to_ids(one.token) if i not in (PAD, BOS)]
    if not ids:
        tokens = tokenizer.ids_to_tokens(range(EOS, tokenizer.vocab_size))
        raise UserError(
            f'{name_of(one)}: "{one.token}" is not a token of the target vocabulary, which has '
            f"{len(tokens):,}; write it as in Translation.target.{suggest(one.token, tokens)}"
        )
    return ids


def name_of(one: Intervention) -> str:
    return type(one).__name__


def outside(noun: str, index: int, count: int, where: str) -> str:
    """'there is no layer 7: the cross attention of this model has 4, from 0 to 3'"""
    has = f"{count}, from 0 to {count - 1}" if count > 1 else f"only {noun} 0" if count else "none"
    return f"there is no {noun} {index}: {where} has {has}"
