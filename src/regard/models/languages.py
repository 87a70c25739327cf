"""The tokens around a text that tell a checkpoint where it starts, and in which language it is.

    most                      source: head w_1 .. w_n EOS       target: start head m_1 .. m_k EOS
    NLLB, M2M-100, mBART-50   source: code w_1 .. w_n EOS       target: EOS code m_1 .. m_k EOS
    mBART-25                  source: w_1 .. w_n EOS code       target: code m_1 .. m_k EOS

The code of the target language is never predicted: it is our BOS ("forced BOS"), and what the decoder reads
before it is its prompt.
"""

from dataclasses import dataclass
from typing import Any

from regard import config
from regard.errors import UserError, join_names, suggest

MULTILINGUAL = ("m2m_100", "nllb-moe", "mbart")  # model types; NLLB's is m2m_100
NOT_LANGUAGES = ("bos", "eos", "pad", "unk", "mask", "sep", "cls")
SHOWN = 8  # languages in a message


@dataclass(frozen=True)
class Template:
    """Tokens by name around a source and before a target, and rows of the embedding matrix."""

    head: tuple[str, ...]
    tail: tuple[str, ...]
    """After the source; if there are any, EOS is one of them."""
    target_head: tuple[str, ...]
    bos_row: int
    prompt_rows: tuple[int, ...] = ()
    """What the decoder reads before BOS."""


def find_template(original: Any, hf_tokenizer: Any, table: config.Pretrained) -> Template:
    """The template of an encoder-decoder checkpoint, for the languages of its [model] table."""
    eos, start = hf_tokenizer.eos_token_id, original.config.decoder_start_token_id
    codes = list_codes(original, hf_tokenizer)
    given = {"source": table.source_language, "target": table.target_language}
    if not codes:
        check_none_given(table.name, given)
        head, _ = split_at_eos(hf_tokenizer, hf_tokenizer("").input_ids)
        return Template(head, (), head, eos if start is None else start)
    source, target = (resolve(table.name, side, name, codes) for side, name in given.items())
    if hasattr(hf_tokenizer, "src_lang"):
        hf_tokenizer.src_lang = source
        added = hf_tokenizer("").input_ids
    else:  # a tokenizer.json without a class of its own, as converted for M2M-100
        added = [codes[source], eos]
    head, tail = split_at_eos(hf_tokenizer, added)
    # A checkpoint whose decoder starts with EOS reads the code as its second token, others as the first.
    prompt_rows = (start,) if start == eos else ()
    return Template(head, tail, (), codes[target], prompt_rows)


def split_at_eos(hf_tokenizer: Any, ids: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(tokens before the text, tokens after it from EOS on: none if EOS is the last token)."""
    names, eos = hf_tokenizer.convert_ids_to_tokens(ids), hf_tokenizer.eos_token_id
    end = ids.index(eos) if eos in ids else len(ids)
    return tuple(names[:end]), tuple(names[end:]) if end + 1 < len(ids) else ()


def list_codes(original: Any, hf_tokenizer: Any) -> dict[str, int]:
    """The language codes of a multilingual checkpoint: its special tokens that have no other purpose."""
    if original.config.model_type not in MULTILINGUAL:
        return {}
    others = {getattr(hf_tokenizer, f"{name}_token_id", None) for name in NOT_LANGUAGES}
    added = hf_tokenizer.added_tokens_decoder.items()
    special = {token.content: row for row, token in added if token.special and row not in others}
    return {
        name: row for name, row in special.items() if not name.startswith("<")
    }  # <mask>, <extra_1>


def resolve(checkpoint: str, side: str, name: str | None, codes: dict[str, int]) -> str:
    """The code of a language: `deu_Latn`, `de_DE`, or `de` for M2M-100's `__de__`."""
    spellings = {code.strip("_"): code for code in codes} | {code: code for code in codes}
    shown = join_names(list(codes)[:SHOWN]) + (
        f", ... ({len(codes)})" if len(codes) > SHOWN else ""
    )
    if name is None:
        raise UserError(
            f'"{checkpoint}" is multilingual: set model.{side}_language to one of its languages ({shown})'
        )
    if name not in spellings:
        raise UserError(
            f'model.{side}_language: "{checkpoint}" has no language "{name}".{suggest(name, spellings)} It '
            f"has {shown}"
        )
    return spellings[name]


def check_none_given(checkpoint: str, given: dict[str, str | None]) -> None:
    side = next((side for side, name in given.items() if name is not None), None)
    if side is not None:
        raise UserError(
            f"model.{side}_language is for multilingual checkpoints (NLLB, M2M-100, mBART), and "
            f'"{checkpoint}" has no language codes: leave it out, or name the language in model.prefix'
        )
