"""Batches of rows that a model can read together."""

from regard.models.interface import Model
from regard.text.batch import BatchSampler, EncodedPairs


def batch_rows(model: Model, encoded: EncodedPairs, max_tokens: int) -> list[list[int]]:
    """Row numbers of each batch; single rows where padding would exceed the model's maximum length."""
    batches = BatchSampler(encoded, max_tokens, len(encoded) or 1, seed=0).in_order()
    lengths = encoded.lengths()  # (target, source)

    def fits(rows: list[int]) -> bool:
        longest = 1 + max(lengths[row][0] for row in rows)
        limits = [model.max_target_length(lengths[row][1]) for row in rows]
        return all(limit is None or longest <= limit for limit in limits)

    return [part for rows in batches for part in ([rows] if fits(rows) else [[r] for r in rows])]
