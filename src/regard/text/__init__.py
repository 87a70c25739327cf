"""Words in, batches out: `corpus` (pairs), `tasks` (made data), `tokenizer` (ids), `batch` (tensors)."""
