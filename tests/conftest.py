"""In tests of single parts, calls pass through beartype, which checks types and tensor shapes."""

import gc
import os
import signal
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from tests import lazy_checks

HERE = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share the cores
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may use the network
_cache = tempfile.TemporaryDirectory(prefix="regard-tests-")
os.environ["REGARD_CACHE"] = _cache.name  # not the user's cache
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell without job control, in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the commands of tests inherit

lazy_checks.install()
with jaxtyping.install_import_hook("regard", "beartype.beartype"):
    import regard.training  # noqa: F401  (imports every package below it)

# Tests of many parts together: they run without checks, as for users, and not at all with --quick.
MANY_PARTS = (
    *("stories", "training", "compare", "labs", "benchmarks", "serve"),
    *("text/test_tasks.py", "text/test_datasets.py", "text/test_overlap.py"),
    "models/test_traced.py",  # while a step is traced, sizes are tensors
    *("evaluation/test_ablation.py", "test_translator.py", "test_api.py", "test_lines.py"),
)
CHECKED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="tests of single parts only, with every tenth case"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases that are checked and, with --quick, those that run.

    One case of each test is checked, and of a test with many cases every 25th, from another start in
    each test: every model is checked by some of the laws, and every law with some of the models. A checked
    case takes several times as long.
    """
    tests = [item.nodeid.partition("[")[0] for item in items]
    counts, numbers = Counter(tests), Counter[str]()
    left_out = set()
    for item, test in zip(items, tests, strict=True):
        path = item.path.relative_to(HERE).as_posix()
        many_parts = path.startswith(MANY_PARTS)
        is_chosen = (numbers[test] + zlib.crc32(test.encode())) % min(counts[test], 25) == 0
        item.stash[CHECKED] = is_chosen and not many_parts and not path.startswith("page")
        if config.getoption("--quick") and (many_parts or numbers[test] % 10):
            left_out.add(item)
        numbers[test] += 1
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: garbage collection need not visit them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before all fixtures of a test."""
    jaxtyping.config.update("jaxtyping_disable", not item.stash[CHECKED])


TEXT = ["the cat sat on the mat.", "a dog, a cat and a hat", "no, no, no: it was the dog's hat"] * 3


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """checkpoint("gpt2"): the folder of a tiny, randomly initialised checkpoint of that architecture."""

    @cache
    def save(architecture: str) -> Path:
        import torch

        folder = tmp_path_factory.mktemp("checkpoint") / architecture
        torch.manual_seed(7)
        tokenizer = train_tokenizer(architecture)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = build_hf_model(architecture, tokenizer)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
        return folder

    return save


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
