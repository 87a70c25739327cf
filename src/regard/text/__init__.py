"""From text to batches: `corpus` (pairs), `tasks` (synthetic data), `tokenizer` (ids), `batch` (tensors)."""
