"""Multilingual checkpoints (NLLB, M2M-100, mBART): the same logits and outputs as Hugging Face's code."""

import string

import pytest
import torch

from regard import config
from regard.errors import UserError
from regard.models import hub, load_pretrained
from regard.models.load_pretrained import Architecture, rebuild
from regard.models.weights import load_tensors, state_tensors
from regard.search import beam, greedy
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS, TokenizerPair

transformers = pytest.importorskip("transformers", reason="needs the extra `pretrained`")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LETTERS = ["▁", *string.ascii_lowercase]
NAMES = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
LANGUAGES = {
    "nllb": ("deu_Latn", "eng_Latn"),
    "m2m100": ("__de__", "__en__"),
    "mbart": ("de_DE", "en_XX"),
    "mbart50": ("de_DE", "en_XX"),
}
PAIRS = [("abc de", "xyz"), ("no", "the long one is here"), ("z", "")]
FLOAT32 = {"atol": 2e-5, "rtol": 2e-5}


def build_tokenizer(name):
    if name in ("mbart", "mbart50"):
        kind = "MBartTokenizer" if name == "mbart" else "MBart50Tokenizer"
        vocab = [(token, -float(n)) for n, token in enumerate(SPECIAL + LETTERS)]
        return getattr(transformers, kind)(vocab=vocab, src_lang="de_DE")
    vocab = {token: n for n, token in enumerate(SPECIAL + LETTERS)}
    codes = ["deu_Latn", "eng_Latn", "fra_Latn"]
    tokenizer = transformers.NllbTokenizer(
        vocab=vocab, merges=[], additional_special_tokens=codes, src_lang="deu_Latn"
    )
    if name == "nllb":
        return tokenizer
    # M2M-100's own class needs SentencePiece: a converted tokenizer has only the tokens.
    backend = tokenizer.backend_tokenizer.__class__.from_str(
        tokenizer.backend_tokenizer.to_str()
        .replace("deu_Latn", "__de__")
        .replace("eng_Latn", "__en__")
        .replace("fra_Latn", "__fr__")
    )
    extra = ["__de__", "__en__", "__fr__"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, extra_special_tokens=extra, **NAMES
    )


def build_model(name, tokenizer):
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 11, "decoder_ffn_dim": 17}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 14}
    ids = {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "vocab_size": len(tokenizer) + 3,
    }
    kind = "MBart" if name.startswith("mbart") else "M2M100"
    start = None if name == "mbart" else 2
    table = getattr(transformers, f"{kind}Config")(
        **sizes, **ids, decoder_start_token_id=start, max_position_embeddings=97
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(table)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module", params=LANGUAGES)
def checkpoint(request, tmp_path_factory):
    """(name, folder) of a tiny checkpoint."""
    name, folder = request.param, tmp_path_factory.mktemp("multilingual") / request.param
    torch.manual_seed(5)
    with hub.quiet():
        tokenizer = build_tokenizer(name)
        tokenizer.save_pretrained(folder)
        build_model(name, tokenizer).save_pretrained(folder)
    return name, folder


def load_ours(folder, source, target, **settings):
    table = config.Pretrained(
        name=str(folder), source_language=source, target_language=target, **settings
    )
    return load_pretrained(table, config.PretrainedTokenizer())


def load_hf(folder):
    with hub.quiet():
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        return model, transformers.AutoTokenizer.from_pretrained(folder)


def source_ids(name, tokenizer, text):
    """As Hugging Face's tokenizer reads a source."""
    if name == "m2m100":
        pieces = tokenizer(text, add_special_tokens=False).input_ids
        return [tokenizer.convert_tokens_to_ids("__de__"), *pieces, 2]
    tokenizer.src_lang = LANGUAGES[name][0]
    return tokenizer(text).input_ids


@torch.no_grad()
def test_logits_equal_those_of_hugging_face(checkpoint):
    name, folder = checkpoint
    source_language, target_language = LANGUAGES[name]
    ours = load_ours(folder, source_language, target_language)
    model, tokenizer = load_hf(folder)
    code = tokenizer.convert_tokens_to_ids(target_language)
    start = [code] if name == "mbart" else [2, code]
    vocab = ours.tokenizers.target.vocab
    shared = [i for i in range(4, len(vocab)) if vocab[i] in tokenizer.get_vocab()]
    hf_shared = [tokenizer.get_vocab()[vocab[i]] for i in shared]
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    batched = ours.model(batch.source, batch.source_mask, batch.target)
    for row, (source, target) in enumerate(PAIRS):
        ids = torch.tensor([source_ids(name, tokenizer, source)])
        pieces = tokenizer(target, add_special_tokens=False).input_ids
        logits = model(input_ids=ids, decoder_input_ids=torch.tensor([start + pieces])).logits[0]
        logits = logits[len(start) - 1 :]
        actual = batched[row, : len(logits)]
        torch.testing.assert_close(actual[:, [*shared, EOS]], logits[:, [*hf_shared, 2]], **FLOAT32)


@torch.no_grad()
def test_search_equals_generate_with_a_forced_bos_token(checkpoint):
    name, folder = checkpoint
    ours = load_ours(folder, *LANGUAGES[name])
    model, tokenizer = load_hf(folder)
    code = tokenizer.convert_tokens_to_ids(LANGUAGES[name][1])
    batch = EncodedPairs.from_pairs(PAIRS, ours.tokenizers).batch(range(len(PAIRS)))
    memory = ours.model.encode(batch.source, batch.source_mask)
    limits = torch.full((len(PAIRS),), 9)
    outputs = greedy(ours.model, memory, limits)
    vocab = ours.tokenizers.target.vocab
    start = {"decoder_start_token_id": code if name == "mbart" else 2}
    start |= {} if name == "mbart" else {"forced_bos_token_id": code}
    model.generation_config = transformers.GenerationConfig(
        max_length=9 + (1 if name == "mbart" else 2),
        eos_token_id=2,
        pad_token_id=1,
        use_cache=False,
        **start,
    )
    for (source, _), output in zip(PAIRS, outputs, strict=True):
        ids = torch.tensor([source_ids(name, tokenizer, source)])
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))[0].tolist()
        out = out[out.index(code) + 1 :]
        names = [vocab[i] for i in output.ids]
        known = tokenizer.get_vocab() | {vocab[EOS]: 2, "<unk>": tokenizer.unk_token_id}
        unused = {name: int(name.split()[1][:-1]) for name in names if name.startswith("<unused")}
        assert [(known | unused)[token] for token in names] == out
    alone = [best[0].ids for best in beam(ours.model, memory, limits, 1)]
    assert alone == [output.ids for output in outputs]


def test_attention_weights_leave_the_prompt_out(checkpoint):
    name, folder = checkpoint
    ours = load_ours(folder, *LANGUAGES[name])
    batch = EncodedPairs.from_pairs(PAIRS[:1], ours.tokenizers).batch([0])
    weights = ours.model.attention_weights(batch.source, batch.source_mask, batch.target)
    length = batch.target.shape[1]
    assert weights["decoder"].shape[-2:] == (length, length)
    assert weights["cross"].shape[-2:] == (length, batch.source.shape[1])
    torch.testing.assert_close(weights["cross"].sum(-1), torch.ones(1, 3, 2, length))
    has_prompt = name != "mbart"
    assert bool((weights["decoder"].sum(-1) < 0.999).any()) is has_prompt


def test_text_is_restored_and_a_source_has_its_language(checkpoint):
    name, folder = checkpoint
    pair = load_ours(folder, *LANGUAGES[name]).tokenizers
    for side in (pair.source, pair.target):
        assert side.decode([BOS, *side.encode("abc de"), EOS]) == "abc de"
    tokens = [pair.source.vocab[i] for i in pair.encode_source("ab")]
    code = LANGUAGES[name][0]
    expected = {"mbart": ["▁", "a", "b", "<end>", code]}
    assert tokens == expected.get(name, [code, "▁", "a", "b", "<end>"])


@torch.no_grad()
def test_run_folder_rebuilds_the_model(checkpoint, tmp_path):
    name, folder = checkpoint
    ours = load_ours(folder, *LANGUAGES[name])
    ours.save(tmp_path)
    table = config.Pretrained(name="gone", source_language="a", target_language="b")
    model = rebuild(table, tmp_path)
    load_tensors(model, state_tensors(ours.model), tmp_path)
    pair = TokenizerPair.load(tmp_path / "tokenizer.json")
    batch = EncodedPairs.from_pairs(PAIRS, pair).batch(range(len(PAIRS)))
    inputs = (batch.source, batch.source_mask, batch.target)
    assert torch.equal(model.eval()(*inputs), ours.model(*inputs))
    assert Architecture.load(tmp_path).prompt_ids == ([] if name == "mbart" else [EOS])


def test_context_has_room_for_the_prompt(checkpoint):
    name, folder = checkpoint
    ours = load_ours(folder, *LANGUAGES[name])
    prompt = 0 if name == "mbart" else 1
    assert ours.model.max_target_length(5) == 97 - prompt
    assert ours.tokenizers.max_tokens == 96 - prompt


def test_languages_are_required_and_checked(checkpoint):
    name, folder = checkpoint
    source, target = LANGUAGES[name]
    with pytest.raises(UserError, match=rf"is multilingual: set model.target_language .*{source}"):
        load_ours(folder, source, None)
    with pytest.raises(
        UserError, match=rf'model.source_language: .* has no language "{source}x".*"{source}"'
    ):
        load_ours(folder, f"{source}x", target)


@pytest.mark.parametrize("checkpoint", ["m2m100"], indirect=True)
def test_m2m_languages_have_short_names(checkpoint):
    short = load_ours(checkpoint[1], "de", "en").tokenizers
    assert short.source.head == ("__de__",)
