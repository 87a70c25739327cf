"""Shapes are checked here, and only here: every call in the tests passes through beartype."""

import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share the cores
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that asks the network tests the network
_cache = tempfile.TemporaryDirectory(prefix="regard-tests-")
os.environ["REGARD_CACHE"] = _cache.name  # the user's own is not for tests

with install_import_hook("regard", "beartype.beartype"):
    import regard.training  # noqa: F401  (and with it everything below it)

TEXT = ["the cat sat on the mat.", "a dog, a cat and a hat", "no, no, no: it was the dog's hat"] * 3


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """checkpoint("gpt2"): the folder of a tiny pretrained model of that shape, made on the spot."""

    @cache
    def saved(shape: str) -> Path:
        import torch

        folder = tmp_path_factory.mktemp("checkpoint") / shape
        torch.manual_seed(7)
        tokenizer = tokenizer_for(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = build_hf_model(shape, tokenizer)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
        return folder

    return saved


SPECIALS = {
    "gpt2": {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"},
    "llama": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "marian": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "bart": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}
TEMPLATES = {"llama": "<s> $A", "marian": "$A </s>", "bart": "<s> $A </s>", "t5": "$A </s>"}


def tokenizer_for(shape: str) -> Any:
    """Bytes in pairs; for T5, likeliest pieces that carry their space as an underscore does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names = SPECIALS[shape]
    special = list(dict.fromkeys(names.values()))
    if shape == "t5":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=41, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=283,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    made.train_from_iterator(TEXT, trainer)
    if shape in TEMPLATES:
        used = [(name, made.token_to_id(name)) for name in special if name in TEMPLATES[shape]]
        made.post_processor = processors.TemplateProcessing(
            single=TEMPLATES[shape], special_tokens=used
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def build_hf_model(shape: str, tokenizer: Any) -> Any:
    """A model with random weights, large enough to matter, and three rows that no token has."""
    import torch
    import transformers

    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
        for name in ("pad", "bos", "eos", "unk")
    }
    ids["decoder_start_token_id"] = ids["eos_token_id"] if shape == "bart" else ids["pad_token_id"]
    vocab = {"vocab_size": len(tokenizer) + 3, **ids}
    two_sided = {"encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 523}
    widths = {"encoder_ffn_dim": 11, "decoder_ffn_dim": 17, "dropout": 0.1}
    heads = {"encoder_attention_heads": 7, "decoder_attention_heads": 7}
    if shape == "gpt2":
        sizes = {"n_embd": 15, "n_head": 3, "n_layer": 2, "n_positions": 521}
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**vocab, **sizes))
    elif shape == "llama":
        sizes = {"hidden_size": 18, "intermediate_size": 31, "num_hidden_layers": 3}
        sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}
        choices = {"attention_dropout": 0.1, "tie_word_embeddings": False}
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**vocab, **sizes, **choices))
    elif shape == "t5":
        sizes = {"d_model": 13, "d_kv": 5, "d_ff": 11, "num_heads": 3}
        layers = {"num_layers": 2, "num_decoder_layers": 3}
        made = transformers.T5ForConditionalGeneration(
            transformers.T5Config(**vocab, **sizes, **layers)
        )
    else:
        kind = {"marian": "Marian", "bart": "Bart"}[shape]
        made_config = getattr(transformers, f"{kind}Config")(
            **vocab, d_model=14, **two_sided, **widths, **heads
        )
        name = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration"}[shape]
        made = getattr(transformers, name)(made_config)
        made.final_logits_bias.normal_()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    made.tie_weights()
    return made
