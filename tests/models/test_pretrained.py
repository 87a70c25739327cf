"""Pretrained models: what they say is what Hugging Face's own code says, in our words and ids."""

import copy
import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, GenerationConfig

from regard import config
from regard.errors import UserError
from regard.models import adopt, hub, packed, tuning
from regard.models.ablate import masked, silenced, uniform
from regard.models.adopt import FILE, Architecture, rebuilt, within_room
from regard.models.pretrained import takes_masks
from regard.models.watch import watched
from regard.models.weights import fill, weights
from regard.search import beam, greedy
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK

SHAPES = ("gpt2", "llama", "marian", "bart", "t5")
ALONE = ("gpt2", "llama")
PAIRS = [
    ("the cat sat", "a hat"),
    ("no, it was the dog's", "the dog, the dog and a mat"),
    ("a", ""),
]
PLACES = {"max_position_embeddings": 8}
SINGLE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(scope="module")
def taken(checkpoint):
    """taken(shape, prefix=...): an adopted checkpoint."""

    def take(shape: str, **choices):
        torch.manual_seed(1)
        table = config.Pretrained(name=str(checkpoint(shape)), **choices)
        return adopt(table, config.PretrainedTokenizer())

    return take


@pytest.fixture(scope="module")
def theirs(checkpoint):
    """(model, tokenizer) as Hugging Face has them."""

    def load(shape: str):
        kind = "AutoModelForCausalLM" if shape in ALONE else "AutoModelForSeq2SeqLM"
        model = getattr(transformers, kind).from_pretrained(checkpoint(shape))
        return model.eval(), AutoTokenizer.from_pretrained(checkpoint(shape))

    with hub.quiet():
        yield load


def columns(tokenizer, their_tokenizer):
    """(our ids, their ids) of every piece that both know by name, and of the end."""
    known = their_tokenizer.get_vocab()
    ours = [
        i for i in range(len(SPECIAL_TOKENS), tokenizer.vocab_size) if tokenizer.vocab[i] in known
    ]
    assert len(ours) > 20
    return [*ours, EOS], [*(known[tokenizer.vocab[i]] for i in ours), their_tokenizer.eos_token_id]


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prompt", [("", "\n"), ("say: ", " =>\nnow ")])
def test_logits_are_those_of_their_own_forward_pass(shape, prompt, taken, theirs):
    prefix, separator = prompt
    adopted = taken(shape, prefix=prefix, separator=separator)
    model, tokenizer = theirs(shape)
    ours, others = columns(adopted.tokenizers.target, tokenizer)
    batch = EncodedPairs.from_pairs(PAIRS, adopted.tokenizers).batch(range(len(PAIRS)))
    together = adopted.model(batch.source, batch.source_mask, batch.target)
    for row, (source, target) in enumerate(PAIRS):
        if shape in ALONE:
            bare = separator.rstrip(" ")
            read = tokenizer(prefix + source).input_ids
            read += tokenizer(bare, add_special_tokens=False).input_ids
            space = separator[len(bare) :]
            said = tokenizer(space + target, add_special_tokens=False).input_ids
            logits = model(input_ids=torch.tensor([read + said])).logits[0, len(read) - 1 :]
        else:
            read = tokenizer(prefix + source, return_tensors="pt").input_ids
            said = tokenizer(target).input_ids[:-1]
            begin = [model.config.decoder_start_token_id, *said]
            logits = model(input_ids=read, decoder_input_ids=torch.tensor([begin])).logits[0]
        found = together[row, : len(said) + 1]
        torch.testing.assert_close(found[:, ours], logits[:, others], **SINGLE)


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_search_is_generate(shape, taken, theirs):
    adopted, limit = taken(shape), 13
    model, tokenizer = theirs(shape)
    batch = EncodedPairs.from_pairs(PAIRS, adopted.tokenizers).batch(range(len(PAIRS)))
    memory = adopted.model.encode(batch.source, batch.source_mask)
    found = greedy(adopted.model, memory, torch.full((len(PAIRS),), limit))
    names = adopted.tokenizers.target.vocab
    known = tokenizer.get_vocab()
    known |= {names[EOS]: tokenizer.eos_token_id, names[UNK]: tokenizer.unk_token_id}
    model.generation_config = GenerationConfig(
        max_new_tokens=limit,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=model.config.decoder_start_token_id if shape not in ALONE else None,
        use_cache=shape != "t5",  # theirs counts the encoder's layers, not the decoder's
    )
    said = set()
    for (source, _), output in zip(PAIRS, found, strict=True):
        read = tokenizer(source + ("\n" if shape in ALONE else ""), return_tensors="pt").input_ids
        out = model.generate(input_ids=read, attention_mask=torch.ones_like(read))[0].tolist()
        out = out[read.shape[1] :] if shape in ALONE else out[1:]
        shown = [names[i] for i in output.ids]
        unused = {name: int(name.split()[1][:-1]) for name in shown if name.startswith("<unused")}
        assert [(known | unused)[name] for name in shown] == out
        said.update(out)
    assert len(said) > 2


@torch.no_grad()
@pytest.mark.parametrize("shape", ALONE)
def test_who_sees_whom_is_ours_to_say_where_they_let_us(shape, taken):
    """Our mask and the one they make agree, at once and word by word; ours needs no look at a number."""
    adopted = taken(shape)
    model, batch = (
        adopted.model,
        EncodedPairs.from_pairs(PAIRS, adopted.tokenizers).batch(range(len(PAIRS))),
    )
    found = []
    asked = []
    reads = model.hugging.base_model.register_forward_pre_hook(
        lambda _, __, given: asked.append(given["attention_mask"].ndim), with_kwargs=True
    )
    for ours in (True, False):
        model.takes_masks = ours
        memory = model.encode(batch.source, batch.source_mask)
        stepped = model.step(batch.target[:, 0], model.init_state(memory))[0]
        found.append((model(batch.source, batch.source_mask, batch.target), stepped))
    reads.remove()
    assert asked == [4, 4, 4, 4, 2, 2, 2, 2]  # two readings of the source, a step, a target; twice
    assert not batch.source_mask.all()
    assert model.supports_cuda_graphs
    for mine, others in zip(*found, strict=True):
        torch.testing.assert_close(mine, others, **SINGLE)


class WaitedError(Exception):
    """The host would have waited for a number of the device's."""


class Hurry(TorchDispatchMode):
    """Raises where a number is asked for, or a shape that depends on one."""

    ASKING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.ASKING:
            raise WaitedError
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", ALONE)
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_training_never_waits_for_a_number_that_only_the_device_knows(shape, tune, taken):
    adopted = taken(shape, tune=tune)
    model, batch = (
        adopted.model.train(),
        EncodedPairs.from_pairs(PAIRS, adopted.tokenizers).batch([0, 1, 2]),
    )

    def learn():
        with Hurry():
            memory = model.encode(batch.source, batch.source_mask)
            model.features(memory, batch.target).sum().backward()

    learn()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    model.takes_masks = False
    with pytest.raises(WaitedError):
        learn()


@pytest.mark.parametrize(
    ("kind", "table", "ours"),
    [
        ("MistralConfig", {"sliding_window": None}, True),
        ("MistralConfig", {"sliding_window": 7}, False),
        ("Qwen3Config", {"layer_types": ["full_attention", "sliding_attention"]}, False),
        ("BloomConfig", {}, False),  # its positions are a bias that it makes of who is there
    ],
)
def test_models_that_see_less_make_their_own_masks(kind, table, ours):
    size = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    size |= {"num_key_value_heads": 2, "intermediate_size": 5, "n_layer": 2, "n_head": 2}
    made = getattr(transformers, kind)(**size, **table)
    assert takes_masks(transformers.AutoModelForCausalLM.from_config(made)) is ours


@torch.no_grad()
@pytest.mark.parametrize("shape", ["gpt2", "t5"])
def test_a_beam_finds_the_same_in_a_padded_batch_and_alone(shape, taken):
    adopted = taken(shape)
    batch = EncodedPairs.from_pairs(PAIRS, adopted.tokenizers).batch(range(len(PAIRS)))
    limits = torch.full((len(PAIRS),), 7)
    memory = adopted.model.encode(batch.source, batch.source_mask)
    together = beam(adopted.model, memory, limits, 3, 3)
    assert [best[0].ids for best in beam(adopted.model, memory, limits, 1)] == [
        found.ids for found in greedy(adopted.model, memory, limits)
    ]
    for row, pair in enumerate(PAIRS):
        one = EncodedPairs.from_pairs([pair], adopted.tokenizers).batch([0])
        alone = beam(
            adopted.model, adopted.model.encode(one.source, one.source_mask), limits[:1], 3, 3
        )
        assert [found.ids for found in alone[0]] == [found.ids for found in together[row]]
        assert len({tuple(found.ids) for found in alone[0]}) == 3


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_text_comes_back_and_reaches_no_special_token(shape, taken):
    pair = taken(shape, prefix="no: ", separator="\n=> ").tokenizers
    odd = ["zébu \n\t €", "<s> </s> <pad> <|end|> <end> <unk>", " no", "no "]
    for text in ["the cat's hat", "a  dog", "", *([] if shape == "t5" else odd)]:
        for side in (pair.source, pair.target):
            ids = side.encode(text)
            assert not {PAD, BOS, EOS, UNK} & set(ids)
            assert side.decode(ids) == text
            assert side.decode([BOS, *ids, EOS, PAD]) == text


def test_what_is_unknown_stays_visible(taken):
    tokens = taken("t5").tokenizers.target
    assert UNK in tokens.encode("the €")
    assert "<unk>" in tokens.decode(tokens.encode("the €"))


def test_tokens_are_readable(taken):
    source = taken("llama", separator="\nnow:").tokenizers.source
    shown = source.ids_to_tokens([*source.encode("the cats"), EOS])
    assert shown == ["<s>", "the", "cat", "·s", "\n", "no", "·w", "<end>"]
    target = taken("t5").tokenizers.target
    assert target.ids_to_tokens(target.encode("hat the")) == [" ", "h", "·at", " ", "t", "·h", "·e"]


def test_text_is_lowered_and_a_prompt_is_not(checkpoint):
    table = config.Pretrained(name=str(checkpoint("gpt2")), prefix="Say: ")
    source = adopt(table, config.PretrainedTokenizer(lowercase=True)).tokenizers.source
    assert source.encode("THE Cat") == source.encode("the cat")
    assert "S" in source.ids_to_tokens(source.encode("THE Cat"))[0]


# --- looking --------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_watched_is_what_is_computed(shape, taken, theirs):
    """Fused = explained; and the weights are those that their own explained form returns."""
    adopted = taken(shape).model
    source, mask = torch.tensor([[7, 8, 9, 10, 11]]), torch.ones(1, 5, dtype=torch.bool)
    target = torch.tensor([[BOS, 12, 13]])
    wanted = adopted(source, mask, target)
    layers = [layer for some in adopted.attention_layers().values() for layer in some]
    with watched(layers) as found:
        torch.testing.assert_close(adopted(source, mask, target), wanted, **SINGLE)
    assert len(found) == len(layers) * (2 if shape in ALONE else 1)  # source, then target
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    shown = adopted.attention_weights(source, mask, target)
    adopted.hugging.set_attn_implementation("eager")  # a softmax, then, and no fused attention
    for name, weight in adopted.attention_weights(source, mask, target).items():
        torch.testing.assert_close(weight, shown[name], **SINGLE)
    model, _ = theirs(shape)
    model.set_attn_implementation("eager")
    order = torch.tensor(taken(shape).tokenizers.target.row_order(begin_of(shape, taken, theirs)))
    if shape in ALONE:
        both = order[torch.cat([source, target], dim=1)]
        out = model(input_ids=both, output_attentions=True)
        rows = torch.stack(out.attentions, dim=1)[..., 5:, :]
        pairs = {"cross": rows[..., :5], "decoder": rows[..., 5:]}
    else:
        out = model(order[source], decoder_input_ids=order[target], output_attentions=True)
        names = {"cross": "cross", "encoder": "encoder", "decoder": "decoder"}
        pairs = {k: torch.stack(getattr(out, f"{v}_attentions"), dim=1) for k, v in names.items()}
    for name, weight in pairs.items():
        torch.testing.assert_close(shown[name], weight, **SINGLE)
        assert weight.std() > 0.02  # and not all alike


def begin_of(shape, taken, theirs) -> int:
    model, tokenizer = theirs(shape)
    newline = tokenizer("\n", add_special_tokens=False).input_ids
    return newline[-1] if shape in ALONE else model.config.decoder_start_token_id


@torch.no_grad()
@pytest.mark.parametrize("shape", ["gpt2", "marian"])
def test_ablations_reach_its_layers(shape, taken):
    model = taken(shape).model
    source, mask = torch.tensor([[7, 8, 9, 10, 11]]), torch.ones(1, 5, dtype=torch.bool)
    inputs = source, mask, torch.tensor([[BOS, 12, 13]])
    before = model(*inputs)
    name = "decoder" if shape == "gpt2" else "cross"
    layer = model.attention_layers()[name][1]
    with silenced(layer, 2):
        assert (model(*inputs) - before).abs().max() > 1e-3
        weight = model.attention_weights(*inputs)[name][:, 1]
        assert (weight[:, 2] == 0).all()
        assert (weight[:, 1] != 0).any()
    with uniform([layer]):
        weight = model.attention_weights(*inputs)["cross"][:, 1]
        if name == "cross":
            torch.testing.assert_close(weight, torch.full_like(weight, 0.2))
            with masked([layer], torch.tensor([[0, 1, 2]])):
                hidden = model.attention_weights(*inputs)["cross"][0, 1, 0]
                assert (hidden.diagonal() == 0).all()
    assert torch.equal(model(*inputs), before)


# --- what learns ----------------------------------------------------------------------------------


def names_that_learn(model) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_frozen_layers_and_embeddings_do_not_learn(taken):
    every = names_that_learn(taken("gpt2").model)
    frozen = every - names_that_learn(taken("gpt2", tune={"kind": "frozen", "layers": 1}).model)
    assert {name.removeprefix("hugging.transformer.").split(".")[0] for name in frozen} == {
        "wte",
        "wpe",
        "h",
    }
    assert all(".h.0." in name for name in frozen if ".h." in name)
    both = every - frozen
    assert any(".h.1." in name for name in both)
    t5 = names_that_learn(taken("t5", tune={"kind": "frozen", "layers": 2}).model)
    assert not any("encoder.block" in name or "shared" in name for name in t5)
    assert {name.split(".")[3] for name in t5 if "decoder.block" in name} == {"2"}


@pytest.mark.parametrize("shape", SHAPES)
def test_lora_learns_beside_the_weights_and_begins_with_nothing(shape, taken):
    whole, lora = taken(shape).model, taken(shape, tune={"kind": "lora", "rank": 3}).model
    assert all("lora_" in name for name in names_that_learn(lora))
    assert 0 < lora.trainable_count < lora.parameter_count / 2
    assert lora.parameter_count - lora.trainable_count == whole.parameter_count
    heads = {"lm_head", "shared"}
    assert not any(part in heads for name in names_that_learn(lora) for part in name.split("."))
    source, mask = torch.tensor([[7, 8, 9]]), torch.ones(1, 3, dtype=torch.bool)
    inputs = source, mask, torch.tensor([[BOS, 12, 13]])
    torch.testing.assert_close(lora(*inputs), whole(*inputs))


def test_lora_takes_the_maps_it_is_given(taken):
    lora = taken("llama", tune={"kind": "lora", "target_modules": ["q_proj", "v_proj"]}).model
    assert {name.split(".")[-4] for name in names_that_learn(lora)} == {"q_proj", "v_proj"}
    known = r'"q_prj"\. Did you mean "q_proj"\? This model has .*q_proj, '
    with pytest.raises(UserError, match=r"model\.tune\.target_modules: there is no map " + known):
        taken("llama", tune={"kind": "lora", "target_modules": ["v_proj", "q_prj"]})
    with pytest.raises(UserError, match=r'no map "lm_head"\. This model has (?!.*lm_head)'):
        taken("llama", tune={"kind": "lora", "target_modules": ["lm_head"]})
    inner = taken("llama", tune={"kind": "lora", "target_modules": ["1.self_attn.q_proj"]}).model
    assert len(names_that_learn(inner)) == 2


def test_more_layers_than_there_are_cannot_be_frozen(taken):
    with pytest.raises(UserError, match=r"tune\.layers is 4, and the model has 3 layers"):
        taken("llama", tune={"kind": "frozen", "layers": 4})


# --- files ----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_a_run_folder_is_enough_to_build_it_again(shape, tune, taken, tmp_path):
    table = config.Pretrained(name="nowhere", tune=tune)
    adopted = taken(shape, tune=tune)
    tokenizers, model = adopted.keep(tmp_path)
    again = rebuilt(table, tmp_path).eval()
    kept = copy.deepcopy(weights(model))
    fill(again, kept, tmp_path)
    batch = EncodedPairs.from_pairs(PAIRS, tokenizers).batch(range(len(PAIRS)))
    inputs = batch.source, batch.source_mask, batch.target
    wanted = model(*inputs)
    assert torch.equal(again(*inputs), wanted)
    torch.testing.assert_close(packed(again)(*inputs), wanted, **SINGLE)
    assert type(tokenizers).load(tmp_path / "tokenizer.json").to_json() == tokenizers.to_json()
    assert "nowhere" not in (tmp_path / FILE).read_text()


def test_a_damaged_architecture_is_named(taken, tmp_path):
    with pytest.raises(UserError, match=r"architecture\.json is missing or damaged"):
        Architecture.load(tmp_path)
    taken("gpt2").keep(tmp_path)
    record = json.loads((tmp_path / FILE).read_text())
    record["hugging"]["model_type"] = "oracle"
    (tmp_path / FILE).write_text(json.dumps(record))
    with pytest.raises(UserError, match='this version of transformers knows no model "oracle"'):
        Architecture.load(tmp_path).build()


def turned(weight: np.ndarray, heads: int) -> np.ndarray:
    """Halves to neighbours: how a GGUF file orders what rotary turns."""
    rows, columns = weight.shape
    parts = weight.reshape(heads, 2, rows // heads // 2, columns)
    return parts.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, model, tokenizer) -> None:
    import gguf

    made, c = gguf.GGUFWriter(path, "llama"), model.config
    made.add_context_length(c.max_position_embeddings)
    made.add_embedding_length(c.hidden_size)
    made.add_block_count(c.num_hidden_layers)
    made.add_feed_forward_length(c.intermediate_size)
    made.add_head_count(c.num_attention_heads)
    made.add_head_count_kv(c.num_key_value_heads)
    made.add_key_length(c.head_dim)
    made.add_rope_dimension_count(c.head_dim)
    made.add_layer_norm_rms_eps(c.rms_norm_eps)
    made.add_vocab_size(c.vocab_size)
    names = {i: name for name, i in tokenizer.get_vocab().items()}
    tokens = [names.get(i, f"<unused {i}>") for i in range(c.vocab_size)]
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("default")
    made.add_token_list(tokens)
    made.add_token_types([3 if i < 3 else 1 for i in range(c.vocab_size)])
    made.add_token_merges([" ".join(merge) for merge in merges])
    made.add_bos_token_id(tokenizer.bos_token_id)
    made.add_eos_token_id(tokenizer.eos_token_id)
    made.add_unk_token_id(tokenizer.unk_token_id)
    places = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
    places |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    places |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    places |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    whole["lm_head.weight"] = "output.weight"
    heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        value, place = tensor.float().numpy(), whole.get(name)
        if place is None:
            _, _, number, rest = name.removesuffix(".weight").split(".", 3)
            kind = places[rest]
            value = turned(value, heads[kind]) if kind in heads else value
            place = f"blk.{number}.{kind}.weight"
        made.add_tensor(place, np.ascontiguousarray(value))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


@torch.no_grad()
def test_a_gguf_file_is_the_model_it_was_made_from(taken, theirs, checkpoint, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, *theirs("llama"))
    found = adopt(config.Pretrained(name=str(path)), config.PretrainedTokenizer())
    wanted = taken("llama")
    text = "the cat's hat, no"
    ids = found.tokenizers.target.encode(text)
    assert ids == wanted.tokenizers.target.encode(text)
    read, mask = torch.tensor([[7, 8, 9]]), torch.ones(1, 3, dtype=torch.bool)
    inputs = read, mask, torch.tensor([[BOS, *ids]])
    loud = [i for i in range(wanted.tokenizers.target.vocab_size) if i not in (PAD, BOS, UNK)]
    logits = (one.model(*inputs)[..., loud] for one in (found, wanted))
    torch.testing.assert_close(*logits, **SINGLE)


# --- mistakes -------------------------------------------------------------------------------------


def refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        adopt(config.Pretrained(name=name), config.PretrainedTokenizer())


def test_a_name_that_leads_nowhere(tmp_path):
    refused("no/gguf/here.gguf", r"there is no file /.*/no/gguf/here\.gguf\.$")
    refused("./models/mine", r"there is no folder models/mine\. model\.name is a folder, a \.gguf")
    refused("me/models/mine", r"there is no folder")
    refused(
        "nobody/nothing",
        r'"nobody/nothing" is neither a folder here .*cannot be reached.*hf download',
    )
    refused(str(tmp_path), r"the folder .* holds no Hugging Face model")
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2.gguf").touch()
    refused(f"{tmp_path}/gtp2", r'there is no folder .*gtp2\. Did you mean "gpt2"\?')
    refused(f"{tmp_path}/gtp2.gguf", r'there is no file .*gtp2\.gguf\. Did you mean "gpt2\.gguf"\?')
    (tmp_path / "gpt2" / "model.safetensors").touch()
    refused(f"{tmp_path}/gpt2/model.safetensors", r"is a file: model\.name is the folder .*gpt2\?")
    said = hub.unreachable("me/mine", OSError("me/mine is not a valid model identifier listed on"))
    assert 'the Hugging Face hub has no model "me/mine"' in said


def test_a_name_in_their_cache_is_suggested(tmp_path, monkeypatch):
    from huggingface_hub import constants

    (tmp_path / "models--HuggingFaceTB--SmolLM2-135M").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refused("HuggingFaceTB/SmolLM-135M", r'Did you mean "HuggingFaceTB/SmolLM2-135M"\? And the hub')


def test_a_damaged_file_is_told_from_a_missing_one(checkpoint, tmp_path):
    for number, size in enumerate((0, 8, 40)):
        (tmp_path / f"{number}.gguf").write_bytes((b"GGUF\3\0\0\0" + b"\1" * size)[:size])
        refused(
            f"{tmp_path}/{number}.gguf", r"\.gguf. cannot be loaded: .*cut off or damaged \(get it"
        )
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(str(folder), r"cannot be loaded as a .*its files are damaged \(get them again\)")


@pytest.mark.parametrize("shape", ["gpt2", "llama", "t5"])
def test_a_tokenizer_that_is_not_there_is_missed(checkpoint, tmp_path, shape):
    folder = shutil.copytree(checkpoint(shape), tmp_path / "mute")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    refused(str(folder), r"mute. comes without its tokenizer: put its tokenizer\.json into")


def test_one_that_reads_from_both_sides_cannot_write(checkpoint, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bart"))
    sizes = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
    made = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=7, **sizes)
    with hub.quiet():
        transformers.BertForMaskedLM(made).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    refused(str(tmp_path), r"is a bert model, which reads a text from both sides and writes none")


def test_a_pickle_is_never_loaded(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "pickled")
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(str(folder), r"has no weights in safetensors, and regard loads no other kind")


def test_code_that_comes_along_is_never_run(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "coded")
    record = json.loads((folder / "config.json").read_text())
    record |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    refused(str(folder), r"cannot be loaded as a translation or language model")


def test_half_a_model_is_refused(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoint("llama"), tmp_path / "half")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    refused(str(folder), r"no whole language model: it lacks 1 weights \(lm_head\.weight")


def test_a_model_that_reads_otherwise_is_refused(tmp_path, checkpoint):
    """M2M100 counts its places from the number of its padding token, which is another one here."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bart"))
    ids = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("pad", "bos", "eos")}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 14, "init_std": 0.5}
    heads = {"encoder_attention_heads": 7, "decoder_attention_heads": 7}
    made = transformers.M2M100Config(
        vocab_size=len(tokenizer), decoder_start_token_id=2, **ids, **sizes, **heads
    )
    with hub.quiet():
        transformers.M2M100ForConditionalGeneration(made).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    refused(str(tmp_path), r"is a m2m_100 model, and regard does not read such a one")


@torch.no_grad()
def test_weights_that_are_no_numbers_are_refused(theirs, tmp_path):
    model, tokenizer = theirs("llama")
    model.get_input_embeddings().weight[5] = float("nan")
    model.get_output_embeddings().weight[7] = float("nan")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refused(
        str(tmp_path), r"does not read such a one as it was meant to be \(logits differ by nan\)"
    )


def test_a_model_with_hardly_a_place_is_refused():
    for made in (transformers.GPT2Config(n_positions=17), transformers.MarianConfig(**PLACES)):
        with pytest.raises(UserError, match="places, too few for a sentence"):
            within_room(made, config.PretrainedTokenizer())


def test_places_must_suffice(checkpoint):
    text = config.PretrainedTokenizer(max_tokens=260)
    with pytest.raises(UserError, match=r"521 places, and a text may need 522 \(twice"):
        adopt(config.Pretrained(name=str(checkpoint("gpt2"))), text)


@pytest.mark.parametrize(
    ("made", "longest"),
    [
        (transformers.GPT2Config(n_positions=512), 255),
        (transformers.GPT2Config(n_positions=1024), 256),
        (transformers.MarianConfig(max_position_embeddings=101), 100),
        (transformers.T5Config(), 256),
    ],
)
def test_who_asks_for_no_length_gets_what_there_are_places_for(made, longest):
    assert within_room(made, config.PretrainedTokenizer()) == longest


@torch.no_grad()
def test_there_is_room_for_what_the_model_has_places_for(taken):
    sources = (1, 500, 521, 523, 524)
    rooms = {"gpt2": [520, 21, 0, 0, 0], "marian": [523, 523, 523, 523, 0], "t5": [None] * 5}
    for shape, wanted in rooms.items():
        model = taken(shape).model
        assert [model.max_target_length(source) for source in sources] == wanted
        source = torch.full((1, 500), 7)
        memory = model.encode(source, source == 7)
        model.features(memory, torch.full((1, model.max_target_length(500) or 7), 7))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_knows_what_has_a_row_for_each_token(shape, taken):
    adopted = taken(shape, tune="lora")
    size, rows = adopted.tokenizers.target.vocab_size, adopted.model.vocab_parameters()
    wide = {id(p) for p in adopted.model.parameters() if len(p) == size}
    assert {id(p) for p in rows["target"]} == wide
    assert len(rows["target"]) == len(wide) > 0
    assert {id(p) for p in rows["source"]} < wide | {0}


def test_the_extra_is_named(monkeypatch):
    for package, needs in {
        "peft": lambda: tuning.add_adapters(None, config.Lora()),
        "transformers": lambda: hub.fetch("anything"),
    }.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=r'pip install "regard\[pretrained\]"'):
            needs()


def test_a_tokenizer_without_an_end_or_a_fast_form_is_refused(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("gpt2"))
    tokenizer.eos_token = None
    with pytest.raises(UserError, match='the tokenizer of "mine" has no end token'):
        hub.fast("mine", tokenizer)
    with pytest.raises(UserError, match=r"no fast form \(tokenizer\.json\)"):
        hub.fast("mine", object())
