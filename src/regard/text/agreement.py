"""The vocabularies of an ensemble: in all members a text has the same tokens, and a token the same id."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from regard.errors import UserError, join_names
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import JSON_KEYS


def share_tokenizers(names: Sequence[str], pairs: Sequence[TokenizerPair]) -> TokenizerPair:
    """The tokenizers of all runs, if they agree; `max_tokens` is the smallest. Errors use the `names`."""
    for name, pair in zip(names[1:], pairs[1:], strict=True):
        difference = next(list_differences(pairs[0].to_json(), pair.to_json()), None)
        if difference is not None:
            raise UserError(
                f"{names[0]} and {name} cannot be members of one ensemble, as their vocabularies differ: "
                f"{difference}. Train both on the same data with the same [tokenizer]"
            )
    return replace(pairs[0], max_tokens=min(pair.max_tokens for pair in pairs))


def list_differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    """What differs between two pairs of tokenizers, as `TokenizerPair.to_json` gives them."""
    if first.keys() != second.keys():
        yield "only one of them has a joint vocabulary (tokenizer.joint)"
        return
    for side, part in {"joint": "", "source": "source ", "target": "target "}.items():
        if side in first:
            yield from list_side_differences(part, first[side], second[side])
    if first["source_eos"] != second["source_eos"]:
        yield "only in one of them the sources end with EOS (tokenizer.source_eos)"


def list_side_differences(
    part: str, first: dict[str, Any], second: dict[str, Any]
) -> Iterator[str]:
    """What differs between two tokenizers; `part` says of which side they are."""
    if first["kind"] != second["kind"]:
        yield f'the {part}tokenizer is "{first["kind"]}" and "{second["kind"]}"'
        return
    old, new = first.get("pieces", ()), second.get("pieces", ())
    if len(old) != len(new):
        yield f"the {part}vocabulary has {len(old):,} and {len(new):,} tokens"
    for number, (one, other) in enumerate(zip(old, new, strict=False), start=1):
        if one != other:
            yield f'token {number:,} of the {part}vocabulary is "{one}" and "{other}"'
            break
    keys = [key for key in first if first[key] != second.get(key) and key != "pieces"]
    if keys:
        yield f"the {part}tokenizers have another {join_names(JSON_KEYS.get(k, k) for k in keys)}"
