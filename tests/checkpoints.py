"""Tiny, randomly initialised checkpoints, as Hugging Face's folders and as a GGUF file."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

TEXT = ["the cat sat on the mat.", "a dog, a cat and a hat", "no, no, no: it was the dog's hat"] * 3


def save_checkpoint(architecture: str, folder: Path) -> None:
    """Write the folder of a checkpoint."""
    import torch

    torch.manual_seed(7)
    tokenizer = train_tokenizer(architecture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build_hf_model(architecture, tokenizer)
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)


SPECIAL_TOKENS = {
    "gpt2": {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"},
    "llama": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "marian": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "bart": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}
TEMPLATES = {"llama": "<s> $A", "marian": "$A </s>", "bart": "<s> $A </s>", "t5": "$A </s>"}


def train_tokenizer(architecture: str) -> Any:
    """Byte-level BPE; for T5, a unigram model with SentencePiece's underscore for spaces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names = SPECIAL_TOKENS[architecture]
    special = list(dict.fromkeys(names.values()))
    if architecture == "t5":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=41, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=283,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    tokenizer.train_from_iterator(TEXT, trainer)
    if template := TEMPLATES.get(architecture):
        used = [(name, tokenizer.token_to_id(name)) for name in special if name in template]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=used
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def build_hf_model(architecture: str, tokenizer: Any) -> Any:
    """A Hugging Face model with large random weights and three embedding rows beyond the vocabulary."""
    import torch
    import transformers

    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
        for name in ("pad", "bos", "eos", "unk")
    }
    start = "eos_token_id" if architecture == "bart" else "pad_token_id"
    ids["decoder_start_token_id"] = ids[start]
    vocab = {"vocab_size": len(tokenizer) + 3, **ids}
    encoder_decoder = {"encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 523}
    sizes = {"encoder_ffn_dim": 11, "decoder_ffn_dim": 17, "dropout": 0.1}
    heads = {"encoder_attention_heads": 7, "decoder_attention_heads": 7}
    if architecture == "gpt2":
        sizes = {"n_embd": 15, "n_head": 3, "n_layer": 2, "n_positions": 521}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**vocab, **sizes))
    elif architecture == "llama":
        sizes = {"hidden_size": 18, "intermediate_size": 31, "num_hidden_layers": 3}
        sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}
        options = {"attention_dropout": 0.1, "tie_word_embeddings": False}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**vocab, **sizes, **options))
    elif architecture == "t5":
        sizes = {"d_model": 13, "d_kv": 5, "d_ff": 11, "num_heads": 3}
        layers = {"num_layers": 2, "num_decoder_layers": 3}
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(**vocab, **sizes, **layers)
        )
    else:
        kind = {"marian": "Marian", "bart": "Bart"}[architecture]
        config = getattr(transformers, f"{kind}Config")(
            **vocab, d_model=14, **encoder_decoder, **sizes, **heads
        )
        name = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration"}[architecture]
        model = getattr(transformers, name)(config)
        model.final_logits_bias.normal_()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.tie_weights()
    return model


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """From two halves to adjacent pairs: how a GGUF file orders the rows for rotary positions."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: Any, tokenizer: Any) -> None:
    """A model of LLaMA's architecture as one GGUF file."""
    import gguf

    writer, c = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    names = {i: name for name, i in tokenizer.get_vocab().items()}
    tokens = [names.get(i, f"<unused {i}>") for i in range(c.vocab_size)]
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i < 3 else 1 for i in range(c.vocab_size)])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    in_block = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
    in_block |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    in_block |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    in_block |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    outside = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    outside["lm_head.weight"] = "output.weight"
    heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        value, gguf_name = tensor.float().numpy(), outside.get(name)
        if gguf_name is None:
            _, _, number, rest = name.removesuffix(".weight").split(".", 3)
            kind = in_block[rest]
            value = interleave(value, heads[kind]) if kind in heads else value
            gguf_name = f"blk.{number}.{kind}.weight"
        writer.add_tensor(gguf_name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
