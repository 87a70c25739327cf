"""The tokenizer of a pretrained model, its vocabulary in Regard's order.

Our four special ids come first, then the checkpoint's other tokens in their original order. The rows of
the checkpoint's embeddings are permuted once, and no other code needs to know the original ids.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Backend

from regard.text.vocabulary import EOS, SPECIAL_TOKENS, Tokenizer

SPACES = ("Ġ", "▁")  # the first character of a piece that follows a space


class PretrainedTokenizer(Tokenizer):
    """A text's pieces as the model reads them: head, the pieces of prefix + text, tail."""

    kind = "pretrained"

    def __init__(
        self,
        backend: str,
        rows: int,
        eos_row: int,
        unk_row: int | None,
        lowercase: bool,
        head: Sequence[str] = (),
        prefix: str = "",
        tail: Sequence[str] = (),
    ) -> None:
        """`backend` in JSON; the number of `rows` of the model's embedding, and those of EOS and UNK."""
        self.record = {"engine": backend, "rows": rows, "end": eos_row, "unknown": unk_row}
        self.backend = load_backend(backend)
        self.eos_row, self.unk_row = eos_row, unk_row
        self.other_rows = [row for row in range(rows) if row not in (eos_row, unk_row)]
        names = {row: name for name, row in self.backend.get_vocab().items()}
        pieces = [names.get(row, f"<unused {row}>") for row in self.other_rows]
        super().__init__(pieces, (), lowercase, strict=False)
        self.head, self.prefix, self.tail = tuple(head), prefix, tuple(tail)
        self.eos_piece = names.get(eos_row)
        added = self.backend.get_added_tokens_decoder().items()
        self.special = {token.content for row, token in added if token.special and row != unk_row}

    def row_order(self, bos_row: int) -> list[int]:
        """The checkpoint's row of each of our ids; `bos_row` is the one it reads as BOS."""
        unk_row = self.eos_row if self.unk_row is None else self.unk_row
        return [self.eos_row, bos_row, self.eos_row, unk_row, *self.other_rows]

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Only its tail may contain EOS, where a language code follows (mBART)."""
        ids = super().encode(text)
        for index, piece in enumerate(self.tail, start=len(ids) - len(self.tail)):
            ids[index] = EOS if piece == self.eos_piece else ids[index]
        return ids

    def tokenize(self, text: str) -> list[str]:
        return [*self.head, *self.tokenize_plain(self.prefix + text), *self.tail]

    def tokenize_plain(self, text: str) -> list[str]:
        """The pieces of the text alone, without head, prefix and tail."""
        return self.backend.encode(text, add_special_tokens=False).tokens

    def detokenize(self, pieces: Iterable[str]) -> str:
        kept = [piece for piece in pieces if piece not in self.special]
        if self.tail and tuple(kept[-len(self.tail) :]) == self.tail:
            kept = kept[: -len(self.tail)]
        return self._decode(kept).removeprefix(self.prefix)

    def _decode(self, pieces: list[str]) -> str:
        decoder = self.backend.decoder
        return " ".join(pieces) if decoder is None else decoder.decode(pieces)

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable: a word's first token as it is, its further tokens after a dot, a space as a space."""
        tokens, inside_word = [], False
        for index in ids:
            name = self.vocab[index]
            is_special = index < len(SPECIAL_TOKENS) or name in self.special
            decoded = "" if is_special else " " if name in SPACES else self._decode([name])
            text = decoded.strip()
            continues = inside_word and not name.startswith(SPACES) and text[:1].isalnum()
            tokens.append("·" + text if continues else text or decoded or name)
            inside_word = bool(text)
        return tokens

    def token_to_ids(self, token: str) -> list[int]:
        """Within a word a token has a dot, which depends on the token before."""
        return super().token_to_ids(token) or super().token_to_ids(token.removeprefix("·"))

    def to_json(self) -> dict[str, Any]:
        template = {"head": self.head, "prefix": self.prefix, "tail": self.tail}
        return {"kind": self.kind, "lower": self.lowercase} | self.record | template


@cache
def load_backend(text: str) -> Backend:
    """Built once for both sides. User input is plain text, even if it looks like a special token."""
    backend = Backend.from_str(text)
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend
