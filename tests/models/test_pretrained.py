"""Pretrained models compute the same as Hugging Face's code, in our vocabulary order."""

import copy
import json
import shutil
import sys

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, GenerationConfig

from regard import config
from regard.errors import UserError
from regard.interventions import Ablate
from regard.models import hub, load_pretrained, pack_weights, tuning
from regard.models.capture import Offsets, capture_weights
from regard.models.intervene import intervene, mask_keys, uniform_attention
from regard.models.load_pretrained import FILE, Architecture, max_text_length, rebuild
from regard.models.pretrained import accepts_4d_mask
from regard.models.weights import load_tensors, state_tensors
from regard.search import beam, greedy
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from tests.checkpoints import write_gguf

SHAPES = ("gpt2", "llama", "marian", "bart", "t5")
DECODER_ONLY = ("gpt2", "llama")
PAIRS = [
    ("the cat sat", "a hat"),
    ("no, it was the dog's", "the dog, the dog and a mat"),
    ("a", ""),
]
SHORT_CONTEXT = {"max_position_embeddings": 8}
FLOAT32 = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(scope="module")
def load(checkpoint):
    """load(shape, prefix=...): a checkpoint as our model and tokenizers."""

    def load_shape(shape: str, **settings):
        torch.manual_seed(1)
        table = config.Pretrained(name=str(checkpoint(shape)), **settings)
        return load_pretrained(table, config.PretrainedTokenizer())

    return load_shape


@pytest.fixture(scope="module")
def load_hf(checkpoint):
    """load_hf(shape): (model, tokenizer) as Hugging Face objects."""

    def load_shape(shape: str):
        auto_class = "AutoModelForCausalLM" if shape in DECODER_ONLY else "AutoModelForSeq2SeqLM"
        model = getattr(transformers, auto_class).from_pretrained(checkpoint(shape))
        return model.eval(), AutoTokenizer.from_pretrained(checkpoint(shape))

    with hub.quiet():
        yield load_shape


def shared_ids(tokenizer, hf_tokenizer):
    """(our ids, Hugging Face's ids) of every token with the same name in both, and of EOS."""
    hf_vocab = hf_tokenizer.get_vocab()
    vocab = tokenizer.vocab
    ids = [i for i in range(len(SPECIAL_TOKENS), tokenizer.vocab_size) if vocab[i] in hf_vocab]
    assert len(ids) > 20
    return [*ids, EOS], [*(hf_vocab[vocab[i]] for i in ids), hf_tokenizer.eos_token_id]


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prompt", [("", "\n"), ("say: ", " =>\nnow ")])
def test_logits_equal_those_of_hugging_face(shape, prompt, load, load_hf):
    prefix, separator = prompt
    ours = load(shape, prefix=prefix, separator=separator)
    model, tokenizer = load_hf(shape)
    ids, hf_ids = shared_ids(ours.tokenizers.target, tokenizer)
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    batched = ours.model(batch.source, batch.source_mask, batch.target)
    for row, (source, target) in enumerate(PAIRS):
        if shape in DECODER_ONLY:
            stripped = separator.rstrip(" ")
            source_ids = tokenizer(prefix + source).input_ids
            source_ids += tokenizer(stripped, add_special_tokens=False).input_ids
            space = separator[len(stripped) :]
            target_ids = tokenizer(space + target, add_special_tokens=False).input_ids
            logits = model(input_ids=torch.tensor([source_ids + target_ids])).logits[0]
            logits = logits[len(source_ids) - 1 :]
        else:
            source_ids = tokenizer(prefix + source, return_tensors="pt").input_ids
            target_ids = tokenizer(target).input_ids[:-1]
            decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *target_ids]])
            logits = model(input_ids=source_ids, decoder_input_ids=decoder_ids).logits[0]
        actual = batched[row, : len(target_ids) + 1]
        torch.testing.assert_close(actual[:, ids], logits[:, hf_ids], **FLOAT32)


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_search_equals_generate(shape, load, load_hf):
    ours, limit = load(shape), 13
    model, tokenizer = load_hf(shape)
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    memory = ours.model.encode(batch.source, batch.source_mask)
    outputs = greedy(ours.model, memory, torch.full((len(PAIRS),), limit))
    vocab = ours.tokenizers.target.vocab
    hf_ids = tokenizer.get_vocab()
    hf_ids |= {vocab[EOS]: tokenizer.eos_token_id, vocab[UNK]: tokenizer.unk_token_id}
    model.generation_config = GenerationConfig(
        max_new_tokens=limit,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=model.config.decoder_start_token_id
        if shape not in DECODER_ONLY
        else None,
        use_cache=shape != "t5",  # Hugging Face sizes the cache by the encoder's layers
    )
    generated = set()
    for (source, _), output in zip(PAIRS, outputs, strict=True):
        prompt = tokenizer(
            source + ("\n" if shape in DECODER_ONLY else ""), return_tensors="pt"
        ).input_ids
        out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))[0].tolist()
        out = out[prompt.shape[1] :] if shape in DECODER_ONLY else out[1:]
        tokens = [vocab[i] for i in output.ids]
        unused = {name: int(name.split()[1][:-1]) for name in tokens if name.startswith("<unused")}
        assert [(hf_ids | unused)[name] for name in tokens] == out
        generated.update(out)
    assert len(generated) > 2


@torch.no_grad()
@pytest.mark.parametrize("shape", DECODER_ONLY)
def test_our_mask_equals_hugging_faces(shape, load):
    """Both masks give the same logits, in one pass and step by step; ours needs no value from the device."""
    ours = load(shape)
    model = ours.model
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    results = []
    dimensions = []
    hook = model.hf_model.base_model.register_forward_pre_hook(
        lambda _, __, kwargs: dimensions.append(kwargs["attention_mask"].ndim), with_kwargs=True
    )
    for accepts in (True, False):
        model.accepts_4d_mask = accepts
        memory = model.encode(batch.source, batch.source_mask)
        step = model.step(batch.target[:, 0], model.init_state(memory))[0]
        results.append((model(batch.source, batch.source_mask, batch.target), step))
    hook.remove()
    assert dimensions == [4, 4, 4, 4, 2, 2, 2, 2]  # two source passes, a step, a target; twice
    assert not batch.source_mask.all()
    assert model.supports_cuda_graphs
    for our_mask, hf_mask in zip(*results, strict=True):
        torch.testing.assert_close(our_mask, hf_mask, **FLOAT32)


class SyncError(Exception):
    """The host would have waited for a value from the device."""


class NoSync(TorchDispatchMode):
    """Raises an error where a value is read, or a shape depends on one."""

    SYNCS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.SYNCS:
            raise SyncError
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", DECODER_ONLY)
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_training_never_waits_for_a_value_from_the_device(shape, tune, load):
    ours = load(shape, tune=tune)
    model = ours.model.train()
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch([0, 1, 2])

    def run_backward():
        with NoSync():
            memory = model.encode(batch.source, batch.source_mask)
            model.features(memory, batch.target).sum().backward()

    run_backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    model.accepts_4d_mask = False
    with pytest.raises(SyncError):
        run_backward()


@pytest.mark.parametrize(
    ("config_class", "settings", "accepted"),
    [
        ("MistralConfig", {"sliding_window": None}, True),
        ("MistralConfig", {"sliding_window": 7}, False),
        ("Qwen3Config", {"layer_types": ["full_attention", "sliding_attention"]}, False),
        ("BloomConfig", {}, False),  # its ALiBi bias is computed from the padding mask
    ],
)
def test_models_with_other_attention_patterns_build_their_own_masks(
    config_class, settings, accepted
):
    size = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    size |= {"num_key_value_heads": 2, "intermediate_size": 5, "n_layer": 2, "n_head": 2}
    hf_config = getattr(transformers, config_class)(**size, **settings)
    hf_model = transformers.AutoModelForCausalLM.from_config(hf_config)
    assert accepts_4d_mask(hf_model) is accepted


@torch.no_grad()
@pytest.mark.parametrize("shape", ["gpt2", "t5"])
def test_beam_search_is_the_same_in_a_padded_batch_and_alone(shape, load):
    ours = load(shape)
    model = ours.model
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    limits = torch.full((len(PAIRS),), 7)
    memory = model.encode(batch.source, batch.source_mask)
    batched = beam(model, memory, limits, 3, 3)
    assert [best[0].ids for best in beam(model, memory, limits, 1)] == [
        hypothesis.ids for hypothesis in greedy(model, memory, limits)
    ]
    for row, pair in enumerate(PAIRS):
        one = EncodedPairs.from_pairs([pair], ours.tokenizers).batch([0])
        alone = beam(model, model.encode(one.source, one.source_mask), limits[:1], 3, 3)
        assert [h.ids for h in alone[0]] == [h.ids for h in batched[row]]
        assert len({tuple(h.ids) for h in alone[0]}) == 3


# --- tokenizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_restored_and_contains_no_special_token(shape, load):
    pair = load(shape, prefix="no: ", separator="\n=> ").tokenizers
    unusual = ["zébu \n\t €", "<s> </s> <pad> <|end|> <end> <unk>", " no", "no "]
    for text in ["the cat's hat", "a  dog", "", *([] if shape == "t5" else unusual)]:
        for side in (pair.source, pair.target):
            ids = side.encode(text)
            assert not {PAD, BOS, EOS, UNK} & set(ids)
            assert side.decode(ids) == text
            assert side.decode([BOS, *ids, EOS, PAD]) == text


def test_unknown_characters_stay_visible(load):
    tokens = load("t5").tokenizers.target
    assert UNK in tokens.encode("the €")
    assert "<unk>" in tokens.decode(tokens.encode("the €"))


def test_tokens_are_readable(load):
    source = load("llama", separator="\nnow:").tokenizers.source
    tokens = source.ids_to_tokens([*source.encode("the cats"), EOS])
    assert tokens == ["<s>", "the", "cat", "·s", "\n", "no", "·w", "<end>"]
    target = load("t5").tokenizers.target
    assert target.ids_to_tokens(target.encode("hat the")) == [" ", "h", "·at", " ", "t", "·h", "·e"]


def test_text_is_lowercased_and_the_prefix_is_not(checkpoint):
    table = config.Pretrained(name=str(checkpoint("gpt2")), prefix="Say: ")
    text = config.PretrainedTokenizer(lowercase=True)
    source = load_pretrained(table, text).tokenizers.source
    assert source.encode("THE Cat") == source.encode("the cat")
    assert "S" in source.ids_to_tokens(source.encode("THE Cat"))[0]


# --- attention weights ----------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_captured_weights_equal_those_of_hugging_face(shape, load, load_hf):
    """The logits do not change, and the weights equal those of Hugging Face's eager attention."""
    ours = load(shape).model
    source, mask = torch.tensor([[7, 8, 9, 10, 11]]), torch.ones(1, 5, dtype=torch.bool)
    target = torch.tensor([[BOS, 12, 13]])
    expected = ours(source, mask, target)
    layers = [layer for group in ours.attention_layers().values() for layer in group]
    with capture_weights(layers, [Offsets()] * len(layers)) as captured:
        torch.testing.assert_close(ours(source, mask, target), expected, **FLOAT32)
    assert len(captured) == len(layers) * (2 if shape in DECODER_ONLY else 1)  # source, then target
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    weights = ours.attention_weights(source, mask, target)
    ours.hf_model.set_attn_implementation("eager")  # which calls softmax instead of fused attention
    for name, eager in ours.attention_weights(source, mask, target).items():
        torch.testing.assert_close(eager, weights[name], **FLOAT32)
    model, _ = load_hf(shape)
    model.set_attn_implementation("eager")
    order = torch.tensor(load(shape).tokenizers.target.row_order(bos_row(shape, load_hf)))
    if shape in DECODER_ONLY:
        sequence = order[torch.cat([source, target], dim=1)]
        out = model(input_ids=sequence, output_attentions=True)
        rows = torch.stack(out.attentions, dim=1)[..., 5:, :]
        hf_weights = {"cross": rows[..., :5], "decoder": rows[..., 5:]}
    else:
        out = model(order[source], decoder_input_ids=order[target], output_attentions=True)
        names = ("cross", "encoder", "decoder")
        hf_weights = {n: torch.stack(getattr(out, f"{n}_attentions"), dim=1) for n in names}
    for name, expected in hf_weights.items():
        torch.testing.assert_close(weights[name], expected, **FLOAT32)
        assert expected.std() > 0.02  # not uniform


def bos_row(shape, load_hf) -> int:
    model, tokenizer = load_hf(shape)
    newline = tokenizer("\n", add_special_tokens=False).input_ids
    return newline[-1] if shape in DECODER_ONLY else model.config.decoder_start_token_id


@torch.no_grad()
@pytest.mark.parametrize("shape", ["gpt2", "marian"])
def test_ablations_apply_to_its_layers(shape, load):
    model = load(shape).model
    source, mask = torch.tensor([[7, 8, 9, 10, 11]]), torch.ones(1, 5, dtype=torch.bool)
    inputs = source, mask, torch.tensor([[BOS, 12, 13]])
    before = model(*inputs)
    name = "decoder" if shape == "gpt2" else "cross"
    layer = model.attention_layers()[name][1]
    with intervene(model, [Ablate(mechanism=name, layer=1, head=2)]):
        assert (model(*inputs) - before).abs().max() > 1e-3
        weight = model.attention_weights(*inputs)[name][:, 1]
        assert (weight[:, 2] == 0).all()
        assert (weight[:, 1] != 0).any()
    with uniform_attention([layer]):
        weight = model.attention_weights(*inputs)["cross"][:, 1]
        if name == "cross":
            torch.testing.assert_close(weight, torch.full_like(weight, 0.2))
            with mask_keys(model, torch.tensor([[0, 1, 2]])):
                masked = model.attention_weights(*inputs)["cross"][0, 1, 0]
                assert (masked.diagonal() == 0).all()
    assert torch.equal(model(*inputs), before)


# --- trained parameters ---------------------------------------------------------------------------


def trainable_names(model) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_frozen_layers_and_embeddings_are_not_trained(load):
    all_names = trainable_names(load("gpt2").model)
    frozen = all_names - trainable_names(load("gpt2", tune={"kind": "frozen", "layers": 1}).model)
    assert {name.removeprefix("hf_model.transformer.").split(".")[0] for name in frozen} == {
        "wte",
        "wpe",
        "h",
    }
    assert all(".h.0." in name for name in frozen if ".h." in name)
    assert any(".h.1." in name for name in all_names - frozen)
    t5 = trainable_names(load("t5", tune={"kind": "frozen", "layers": 2}).model)
    assert not any("encoder.block" in name or "shared" in name for name in t5)
    assert {name.split(".")[3] for name in t5 if "decoder.block" in name} == {"2"}


@pytest.mark.parametrize("shape", SHAPES)
def test_lora_trains_only_adapters_and_starts_as_the_identity(shape, load):
    full, lora = load(shape).model, load(shape, tune={"kind": "lora", "rank": 3}).model
    assert all("lora_" in name for name in trainable_names(lora))
    assert 0 < lora.trainable_count < lora.parameter_count / 2
    assert lora.parameter_count - lora.trainable_count == full.parameter_count
    excluded = {"lm_head", "shared"}
    assert not any(excluded & set(name.split(".")) for name in trainable_names(lora))
    source, mask = torch.tensor([[7, 8, 9]]), torch.ones(1, 3, dtype=torch.bool)
    inputs = source, mask, torch.tensor([[BOS, 12, 13]])
    torch.testing.assert_close(lora(*inputs), full(*inputs))


def test_lora_adapts_only_its_target_modules(load):
    lora = load("llama", tune={"kind": "lora", "target_modules": ["q_proj", "v_proj"]}).model
    assert {name.split(".")[-4] for name in trainable_names(lora)} == {"q_proj", "v_proj"}
    suggestion = r'"q_prj"\. Did you mean "q_proj"\? This model has .*q_proj, '
    with pytest.raises(
        UserError, match=r"model\.tune\.target_modules: there is no linear layer " + suggestion
    ):
        load("llama", tune={"kind": "lora", "target_modules": ["v_proj", "q_prj"]})
    with pytest.raises(
        UserError, match=r'no linear layer "lm_head"\. This model has (?!.*lm_head)'
    ):
        load("llama", tune={"kind": "lora", "target_modules": ["lm_head"]})
    one_layer = load("llama", tune={"kind": "lora", "target_modules": ["1.self_attn.q_proj"]}).model
    assert len(trainable_names(one_layer)) == 2


def test_freezing_more_layers_than_there_are_raises_an_error(load):
    with pytest.raises(UserError, match=r"tune\.layers is 4, but the model has only 3 layers"):
        load("llama", tune={"kind": "frozen", "layers": 4})


# --- files ----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_a_run_folder_is_enough_to_rebuild_the_model(shape, tune, load, tmp_path):
    table = config.Pretrained(name="nowhere", tune=tune)
    ours = load(shape, tune=tune)
    tokenizers, model = ours.tokenizers, ours.model
    ours.save(tmp_path)
    rebuilt = rebuild(table, tmp_path).eval()
    load_tensors(rebuilt, copy.deepcopy(state_tensors(model)), tmp_path)
    batch = EncodedPairs.from_pairs(PAIRS, tokenizers).batch(range(len(PAIRS)))
    inputs = batch.source, batch.source_mask, batch.target
    expected = model(*inputs)
    assert torch.equal(rebuilt(*inputs), expected)
    torch.testing.assert_close(pack_weights(rebuilt)(*inputs), expected, **FLOAT32)
    assert type(tokenizers).load(tmp_path / "tokenizer.json").to_json() == tokenizers.to_json()
    assert "nowhere" not in (tmp_path / FILE).read_text()


def test_a_damaged_architecture_raises_an_error(load, tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*architecture\.json"):
        Architecture.load(tmp_path)
    load("gpt2").save(tmp_path)
    record = json.loads((tmp_path / FILE).read_text())
    table = config.Pretrained(name="x")
    for damage, message in (
        ({"suppressed_ids": ["a"]}, r"suppressed_ids\.0: got \"a\""),
        ({"colour": "red"}, "colour is not a known field"),
        ({"hf_config": record["hf_config"] | {"n_embd": "wide"}}, r"n_embd"),
    ):
        (tmp_path / FILE).write_text(json.dumps(record | damage))
        with pytest.raises(
            UserError, match=rf"architecture\.json is damaged: .*{message}.* Restore"
        ):
            rebuild(table, tmp_path)
    record["hf_config"]["model_type"] = "oracle"
    (tmp_path / FILE).write_text(json.dumps(record))
    with pytest.raises(UserError, match='this version of transformers has no model type "oracle"'):
        Architecture.load(tmp_path).build()


@torch.no_grad()
def test_a_gguf_file_equals_the_original_model(load, load_hf, checkpoint, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, *load_hf("llama"))
    from_gguf = load_pretrained(config.Pretrained(name=str(path)), config.PretrainedTokenizer())
    original = load("llama")
    text = "the cat's hat, no"
    ids = from_gguf.tokenizers.target.encode(text)
    assert ids == original.tokenizers.target.encode(text)
    source, mask = torch.tensor([[7, 8, 9]]), torch.ones(1, 3, dtype=torch.bool)
    inputs = source, mask, torch.tensor([[BOS, *ids]])
    allowed = [i for i in range(original.tokenizers.target.vocab_size) if i not in (PAD, BOS, UNK)]
    logits = (loaded.model(*inputs)[..., allowed] for loaded in (from_gguf, original))
    torch.testing.assert_close(*logits, **FLOAT32)


# --- errors ---------------------------------------------------------------------------------------


def assert_error(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(config.Pretrained(name=name), config.PretrainedTokenizer())


def test_a_name_without_a_checkpoint(tmp_path):
    assert_error("no/gguf/here.gguf", r"there is no file /.*/no/gguf/here\.gguf\.$")
    assert_error(
        "./models/mine", r"there is no folder models/mine\. model\.name is a folder, a \.gguf"
    )
    assert_error("me/models/mine", r"there is no folder")
    assert_error(
        "nobody/nothing",
        r'"nobody/nothing" is neither a folder nor .*cannot be reached.*hf download',
    )
    assert_error(str(tmp_path), r"the folder .* is not a Hugging Face checkpoint")
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2.gguf").touch()
    assert_error(f"{tmp_path}/gtp2", r'there is no folder .*gtp2\. Did you mean "gpt2"\?')
    assert_error(
        f"{tmp_path}/gtp2.gguf", r'there is no file .*gtp2\.gguf\. Did you mean "gpt2\.gguf"\?'
    )
    (tmp_path / "gpt2" / "model.safetensors").touch()
    assert_error(
        f"{tmp_path}/gpt2/model.safetensors", r"is a file: model\.name is the folder .*gpt2\?"
    )
    error = OSError("me/mine is not a valid model identifier listed on")
    message = hub.explain_missing("me/mine", error)
    assert 'the Hugging Face hub has no model "me/mine"' in message


def test_a_name_in_the_hugging_face_cache_is_suggested(tmp_path, monkeypatch):
    from huggingface_hub import constants

    (tmp_path / "models--HuggingFaceTB--SmolLM2-135M").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert_error(
        "HuggingFaceTB/SmolLM-135M", r'Did you mean "HuggingFaceTB/SmolLM2-135M"\? And the hub'
    )


def test_damaged_weights_and_sizes_of_a_checkpoint(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoint("llama"), tmp_path / "checkpoint")
    path = folder / "config.json"
    original = json.loads(path.read_text())
    path.write_text(json.dumps(original | {"num_hidden_layers": 10**9}))
    assert_error(str(folder), r"is damaged: it has 1,000,000,000 layers \(num_hidden_layers\)")
    half = original | {"model_type": "llama\ud800"}
    path.write_text(json.dumps(half))
    assert_error(str(folder), r"is damaged: half of a surrogate pair|cannot be loaded")
    path.write_text(json.dumps(original | {"num_attention_heads": 5}))
    assert_error(str(folder), r"cannot be loaded as a translation or language model")
    path.write_text(json.dumps(original))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert_error(str(folder), r"has NaN or infinity in model\.norm\.weight: its files are damaged")


def test_a_tokenizer_that_panics_is_an_error(checkpoint, tmp_path):
    """A panic of Rust's is no Exception."""
    folder = shutil.copytree(checkpoint("marian"), tmp_path / "checkpoint")
    path = folder / "tokenizer.json"
    record = json.loads(path.read_text())
    record["post_processor"]["single"].append({"SpecialToken": {"id": "<none>", "type_id": 0}})
    path.write_text(json.dumps(record))
    assert_error(str(folder), r"cannot be loaded as a translation or language model")


def test_a_damaged_file_has_another_message_than_a_missing_one(checkpoint, tmp_path):
    for number, size in enumerate((0, 8, 40)):
        (tmp_path / f"{number}.gguf").write_bytes((b"GGUF\3\0\0\0" + b"\1" * size)[:size])
        assert_error(
            f"{tmp_path}/{number}.gguf",
            r"\.gguf. cannot be loaded: .*truncated or damaged \(download it",
        )
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "truncated")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert_error(
        str(folder), r"cannot be loaded as a .*its files are damaged \(download them again\)"
    )


@pytest.mark.parametrize("shape", ["gpt2", "llama", "t5"])
def test_a_missing_tokenizer_raises_an_error(checkpoint, tmp_path, shape):
    folder = shutil.copytree(checkpoint(shape), tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert_error(str(folder), r"bare. has no tokenizer: put its tokenizer\.json into")


def test_a_bidirectional_model_cannot_generate(checkpoint, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bart"))
    sizes = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
    hf_config = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=7, **sizes)
    with hub.quiet():
        transformers.BertForMaskedLM(hf_config).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    assert_error(
        str(tmp_path), r"is a bert model: its attention is bidirectional, so it cannot generate"
    )


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"}", b"", r"tokenizer\.json is damaged"),
        (b'"a": 67', b'"a": 1000000000', "a token with the id 1,000,000,000, too large"),
        (b'"id": 2', b'"id": 99999999', "a token with the id 99,999,999, too large"),
    ],
)
def test_a_damaged_tokenizer_is_a_user_error(checkpoint, tmp_path, old, new, message):
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "damaged")
    path = folder / "tokenizer.json"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        load_pretrained(config.Pretrained(name=str(folder)), config.PretrainedTokenizer())


# How a checkpoint can name a pickle as its weights: the names of the pickle and of an index of shards,
# further entries of config.json, the error.
PICKLES = {
    "pytorch_model": (
        "pytorch_model.bin",
        None,
        {},
        "has no weights in safetensors, the only format",
    ),
    "index": ("pytorch_model.bin", "pytorch_model.bin.index.json", {}, "no weights in safetensors"),
    "index of safetensors": ("model-1.bin", INDEX, {}, "names model-1.bin as a file of weights"),
    "file without a suffix": ("weights", INDEX, {}, "names weights as a file"),
    "file outside": ("../model.safetensors", INDEX, {}, "names ../model.safetensors as a file"),
    "absolute path": ("{folder}/x.safetensors", INDEX, {}, "names .*x.safetensors as a file"),
    "config": ("x.bin", None, {"transformers_weights": "x.bin"}, "names x.bin as a file"),
    "config, adapter": (
        "adapter_model.bin",
        None,
        {"transformers_weights": "adapter_model.bin"},
        "names adapter_model.bin as a file",
    ),
    "index in config": (
        "x.bin",
        "my.safetensors.index.json",
        {"transformers_weights": "my.safetensors.index.json"},
        "names x.bin as a file",
    ),
    "safetensors": ("model.safetensors", None, {}, "its files are damaged"),
    "shard": ("model-1.safetensors", INDEX, {}, "its files are damaged"),
    "adapter": ("adapter_model.bin", "adapter_config.json", {}, "has a PEFT adapter"),
}


@pytest.mark.parametrize("way", PICKLES)
def test_a_pickle_is_never_loaded(checkpoint, tmp_path, monkeypatch, way):
    from safetensors.torch import load_file

    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "pickled")
    pickled, index, entries, message = PICKLES[way]
    pickled = pickled.format(folder=folder)
    tensors = load_file(folder / "model.safetensors")
    if index != "adapter_config.json":
        (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / pickled)
    if index:
        shards = {"metadata": {}, "weight_map": dict.fromkeys(tensors, pickled)}
        (folder / index).write_text(json.dumps(shards | {"peft_type": "LORA"}))
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | entries))
    loaded = []
    monkeypatch.setattr(torch, "load", lambda *args, **_: loaded.append(args))
    assert_error(str(folder), message)
    assert not loaded


def test_shards_are_loaded(checkpoint, tmp_path):
    model, _ = hub.load_checkpoint(str(checkpoint("gpt2")))
    shutil.copytree(checkpoint("gpt2"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    again, _ = hub.load_checkpoint(str(tmp_path))
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("table", [{}, {"text_config": {}}])
def test_a_kernel_is_never_loaded(checkpoint, tmp_path, table):
    """Neither one that a checkpoint names, nor one that a run folder names."""
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "kernel")
    for value in table.values():
        value["_attn_implementation"] = "someone/kernel"
    record = json.loads((folder / "config.json").read_text())
    record |= table or {"attn_implementation": "someone/kernel"}
    (folder / "config.json").write_text(json.dumps(record))
    assert_error(str(folder), "needs code of someone/kernel .*, which regard never runs")
    with pytest.raises(UserError, match=r"architecture\.json. needs code of someone/kernel"):
        Architecture(record, 1.0, []).build()


def test_code_in_a_checkpoint_is_never_run(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "coded")
    record = json.loads((folder / "config.json").read_text())
    record |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    assert_error(str(folder), r"cannot be loaded as a translation or language model")


def test_an_incomplete_model_raises_an_error(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoint("llama"), tmp_path / "half")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert_error(
        str(folder),
        r"not a complete language model: it lacks 1 weights \(for example lm_head\.weight",
    )


def test_a_model_without_parity_raises_an_error(tmp_path, checkpoint, monkeypatch):
    """M2M100's positions start at the id of its padding token, which our vocabulary order changes."""
    module = sys.modules["regard.models.load_pretrained"]  # the package has a function of that name
    monkeypatch.setattr(module, "shift_positions", lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bart"))
    ids = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("pad", "bos", "eos")}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 14, "init_std": 0.5}
    heads = {"encoder_attention_heads": 7, "decoder_attention_heads": 7}
    hf_config = transformers.M2M100Config(
        vocab_size=len(tokenizer), decoder_start_token_id=2, **ids, **sizes, **heads
    )
    with hub.quiet():
        transformers.M2M100ForConditionalGeneration(hf_config).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    assert_error(str(tmp_path), r"is a m2m_100 model, which regard does not reproduce")


@torch.no_grad()
def test_nan_weights_raise_an_error(load_hf, tmp_path):
    model, tokenizer = load_hf("llama")
    model.get_input_embeddings().weight[5] = float("nan")
    model.get_output_embeddings().weight[7] = float("nan")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert_error(str(tmp_path), r"has NaN or infinity in model\.embed_tokens\.weight")


def test_a_model_with_a_tiny_context_raises_an_error():
    for hf_config in (
        transformers.GPT2Config(n_positions=17),
        transformers.MarianConfig(**SHORT_CONTEXT),
    ):
        with pytest.raises(UserError, match="tokens, too short for a sentence"):
            max_text_length(hf_config, config.PretrainedTokenizer())


def test_max_tokens_beyond_the_context_raises_an_error(checkpoint):
    text = config.PretrainedTokenizer(max_tokens=260)
    with pytest.raises(UserError, match=r"521 tokens, and it may need 522 \(2 \(tokenizer"):
        load_pretrained(config.Pretrained(name=str(checkpoint("gpt2"))), text)


@pytest.mark.parametrize(
    ("hf_config", "longest"),
    [
        (transformers.GPT2Config(n_positions=512), 255),
        (transformers.GPT2Config(n_positions=1024), 256),
        (transformers.MarianConfig(max_position_embeddings=101), 100),
        (transformers.T5Config(), 256),
    ],
)
def test_max_tokens_defaults_to_what_the_context_allows(hf_config, longest):
    assert max_text_length(hf_config, config.PretrainedTokenizer()) == longest


@torch.no_grad()
def test_the_maximal_target_length_fits_the_context(load):
    sources = (1, 500, 521, 523, 524)
    expected = {"gpt2": [520, 21, 0, 0, 0], "marian": [523, 523, 523, 523, 0], "t5": [None] * 5}
    for shape, lengths in expected.items():
        model = load(shape).model
        assert [model.max_target_length(source) for source in sources] == lengths
        source = torch.full((1, 500), 7)
        memory = model.encode(source, source == 7)
        model.features(memory, torch.full((1, model.max_target_length(500) or 7), 7))


@pytest.mark.parametrize("shape", SHAPES)
def test_vocabulary_parameters_have_a_row_for_each_token(shape, load):
    ours = load(shape, tune="lora")
    size, by_side = ours.tokenizers.target.vocab_size, ours.model.vocab_parameters()
    expected = {id(p) for p in ours.model.parameters() if len(p) == size}
    assert {id(p) for p in by_side["target"]} == expected
    assert len(by_side["target"]) == len(expected) > 0
    assert {id(p) for p in by_side["source"]} < expected | {0}


def test_a_missing_package_names_the_extra_to_install(monkeypatch):
    for package, use in {
        "peft": lambda: tuning.add_adapters(None, config.Lora()),
        "transformers": lambda: hub.load_checkpoint("anything"),
    }.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=r'pip install "regard\[pretrained\]"'):
            use()


def test_a_tokenizer_without_eos_or_fast_version_raises_an_error(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("gpt2"))
    tokenizer.eos_token = None
    with pytest.raises(UserError, match='the tokenizer of "mine" has no end-of-sequence token'):
        hub.check_tokenizer("mine", tokenizer)
    with pytest.raises(UserError, match=r"no fast version \(tokenizer\.json\)"):
        hub.check_tokenizer("mine", object())


@pytest.mark.parametrize("shape", ["t5", "gpt2"])
def test_languages_of_a_checkpoint_without_codes_are_a_user_error(shape, load):
    with pytest.raises(UserError, match=r"model.target_language is for multilingual checkpoints"):
        load(shape, target_language="de")
