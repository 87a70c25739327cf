"""Names of version 0.1 and what they are called now: an error about an old name gives the new one."""

# By table and key, as written in a TOML file; the new key is in the same table.
KEYS: dict[str, str] = {
    "training.rate": "learning_rate",
    "training.average": "ema_decay",
    "training.clip": "grad_clip",
    "training.graphs": "cuda_graphs",
    "training.shapes": "bucket_shapes",
    "training.best_by": "checkpoint_metric",
    "training.evaluate_every": "validate_every",
    "training.warmup": "warmup_steps",
    "model.width": "d_model",
    "model.feed_forward": "d_ff",
    "model.hidden": "hidden_dim",
    "model.embedding": "embedding_dim",
    "model.norm_at": "norm_position",
    "model.tied": "tie_embeddings",
    "attention.key_value_heads": "kv_heads",
    "attention.head_width": "head_dim",
    "attention.kq_width": "kq_dim",
    "attention.latent": "latent_dim",
    "attention.rope": "rope_dim",
    "position.every": "nope_interval",
    "mixer.state": "state_dim",
    "mixer.kernel": "conv_kernel",
    "tune.targets": "target_modules",
    "data.bad": "on_error",
    "data.without": "exclude",
    "data.share": "fraction",
    "data.keys": "fields",
    "noise.mask": "mask_ratio",
    "noise.span": "span_length",
    "noise.delete": "delete_ratio",
    "noise.shuffle": "shuffle_distance",
    "tokenizer.lower": "lowercase",
    "tokenizer.size": "vocab_size",
    "search.length_power": "length_penalty",
}

# By setting and value; the setting itself may be new.
VALUES: dict[str, dict[str, str]] = {
    "data.kind": {"task": "synthetic", "named": "dataset"},
    "data.on_error": {"refuse": "raise"},
    "model.norm_position": {"before": "pre", "after": "post"},
}

PRESETS: dict[str, str] = {"gpt-like": "multi30k-gpt", "original-2017": "multi30k-vaswani"}
