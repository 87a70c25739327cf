"""Packed runs: the numbers of the run, in the places that the manifest says; errors for what cannot run."""

import copy
import json
import re
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors import safe_open

import regard
from regard import config, shipped
from regard.config import Config
from regard.errors import UserError
from regard.models import Ensemble, weights
from regard.page.pack import (
    ALIGNMENT,
    MOST_EXAMPLES,
    check_supported,
    choose_examples,
    describe,
    pack,
)
from regard.page.schema import ModelInfo
from regard.text.tokenizer import BOS, TokenizerPair
from regard.translator import Translator
from tests.models.conftest import MODELS, make
from tests.page.conftest import tokenizer, translator
from tests.page.engine import FOLDER, to_tensor

SHIPPED = sorted(shipped.names())


def unpack(manifest: dict, binary: bytes) -> dict[str, torch.Tensor]:
    """Every tensor as it lies in the binary; the scales of an int8 matrix under their own name."""
    tensors = {}
    for entry in manifest["tensors"]:
        count = int(np.prod(entry["shape"]))
        values = np.frombuffer(binary, entry["dtype"], count, entry["offset"])
        tensors[entry["name"]] = torch.from_numpy(values.copy()).reshape(entry["shape"])
        if entry["scales"] is not None:
            scales = np.frombuffer(binary, "float32", entry["shape"][0], entry["scales"])
            tensors[entry["name"] + weights.SCALES] = torch.from_numpy(scales.copy())[:, None]
    return tensors


@pytest.fixture(scope="module", params=SHIPPED)
def packed(request):
    return request.param, *pack(regard.load(request.param), request.param)


def test_shipped_models_keep_their_int8_numbers(packed):
    """They are int8 on disk already: nothing is rounded twice."""
    name, manifest, binary = packed
    with safe_open(shipped.find_run(name) / "model.safetensors", framework="pt") as file:
        expected = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    tensors = unpack(manifest, binary)
    assert tensors.keys() == expected.keys()
    for key, tensor in expected.items():
        if tensor.dtype == torch.int8:
            assert torch.equal(tensors[key], tensor)
        else:  # s = max |row| / 127 of the dequantized row is the same to rounding
            torch.testing.assert_close(tensors[key], tensor, rtol=2e-7, atol=0)


def test_manifest_is_json_and_describes_the_model(packed):
    name, manifest, binary = packed
    assert json.dumps(manifest, allow_nan=False)
    info = ModelInfo.model_validate(manifest["info"])
    assert (info.name, info.source_language, info.target_language) == (name, "de", "en")
    assert info.parameters == sum(int(np.prod(t["shape"])) for t in manifest["tensors"])
    assert info.heads["cross"] == ((4, 4) if name == "de-en" else (1, 1))
    assert info.examples
    assert "tatoeba.org" in info.facts["attribution"]
    assert len(binary) < 1.03 * info.parameters


@pytest.mark.parametrize("float32", [False, True])
def test_tensors_are_aligned_and_fill_the_binary(both, float32):
    name, python = both
    manifest, binary = pack(python, name, float32=float32)
    offsets = [t[key] for t in manifest["tensors"] for key in ("offset", "scales")]
    assert all(offset % ALIGNMENT == 0 for offset in offsets if offset is not None)
    tensors = unpack(manifest, binary)
    sizes = (tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert len(binary) == sum(size + -size % ALIGNMENT for size in sizes)
    expected = weights.state_tensors(python.model)
    restored = weights.dequantize_tensors(tensors)
    assert restored.keys() == expected.keys()
    for key, tensor in expected.items():
        exact = float32 or tensor.ndim != 2
        step = 0 if exact else float(tensor.abs().max()) / 127
        torch.testing.assert_close(restored[key], tensor, atol=0.501 * step, rtol=0)


@torch.inference_mode()
def test_int8_in_the_engine_is_the_dequantized_model(engine):
    python = copy.deepcopy(translator("transformer-position-rotary"))
    engine.load(python, "int8", float32=False)
    tensors = weights.quantize_tensors(weights.state_tensors(python.model))
    source, target = [5, 7, 2], [5, 9, 2]
    mask = torch.ones(1, 3, dtype=torch.bool)
    inputs = (torch.tensor([source]), mask, torch.tensor([[BOS, *target[:-1]]]))
    float32 = python.model(*inputs).log_softmax(-1)[0]
    weights.load_tensors(python.model, weights.dequantize_tensors(tensors), FOLDER)
    expected = python.model(*inputs).log_softmax(-1)[0]
    result = engine.call("read", model="int8", source=source, target=target)["log_probs"]
    torch.testing.assert_close(to_tensor(result), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(float32, expected, atol=1e-3)


@pytest.mark.parametrize(
    "name", [n for n, table in MODELS.items() if "mixer" in table and "prefix" not in n]
)
def test_state_spaces_are_rejected(name):
    settings = Config.model_validate({"model": MODELS[name]})
    model = make(MODELS[name])
    pair = TokenizerPair(tokenizer(23, "A"), tokenizer(19, "a"), 31)
    with pytest.raises(UserError, match='its mixer is "state-space", and a state space has no'):
        pack(Translator(settings, pair, model), "mine")


def test_pretrained_models_are_rejected():
    settings = Config.model_validate({"model": config.Pretrained(name="somewhere")})
    with pytest.raises(UserError, match='its model is "pretrained", and its layers'):
        check_supported(settings, "mine")


def test_language_models_are_rejected():
    data = {"kind": "text", "train": "a", "val": "b"}
    settings = Config.model_validate({"data": data, "model": {"kind": "decoder-only"}})
    with pytest.raises(UserError, match="mine cannot run in a page: it is a language model"):
        check_supported(settings, "mine")


def test_own_kinds_are_rejected(monkeypatch):
    monkeypatch.setitem(config.EXTENSIONS, "score", {"mine"})
    table = {"kind": "recurrent", "attention": {"score": "mine"}}
    with pytest.raises(UserError, match='its score is "mine", and it is your own kind'):
        check_supported(Config.model_validate({"model": table}), "mine")


def test_examples_of_own_files(tmp_path):
    """Short sentences of the test file, else of the validation file; none if there are no files any more."""
    lines = {
        "train": ["t"],
        "val": ["five six", *"abcdefgh"],
        "test": ["one two", "long " * 20, "one two", "x"],
    }
    paths = {split: tmp_path / f"{split}.tsv" for split in lines}
    for split, path in paths.items():
        path.write_text("".join(f"{line.strip()}\tz\n" for line in lines[split]))
    data = config.FileData(**{split: str(path) for split, path in paths.items()})
    assert choose_examples(data) == ("one two", "x")
    paths["test"].unlink()
    assert choose_examples(data) == ("five six", *"abcdefgh"[: MOST_EXAMPLES - 1])
    paths["val"].unlink()
    assert choose_examples(data) == ()


def test_examples_of_other_data():
    assert choose_examples(config.DatasetData())[0].startswith("Ein Mann")
    assert choose_examples(config.DatasetData(source="cs")) == ()
    assert choose_examples(config.PairsData()) == ()
    for task in get_args(config.SyntheticData.model_fields["name"].annotation):
        assert choose_examples(config.SyntheticData(name=task))


def test_engine_modules_can_be_joined():
    """build.py joins them into one script: no name at the top level may occur twice, nor in another form."""
    names = []
    for path in sorted(FOLDER.glob("*.js")):
        text = path.read_text("utf-8")
        names += re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.M
        )
        assert all(
            re.match(r'import \{ [\w, ]+ \} from "\./\w+\.js";$', line)
            for line in text.splitlines()
            if line.startswith("import")
        )
        assert not re.search(r"^export (default|\{|\*)", text, re.M)
    assert len(names) == len(set(names))


def test_an_ensemble_cannot_be_packed():
    one = translator("gru-1-bidirectional")
    both = Translator(one.config, one.tokenizers, Ensemble([one.model, one.model]))
    with pytest.raises(
        UserError, match=r"both cannot run in a page: it is an ensemble, .*`regard serve`"
    ):
        pack(both, "both")
    assert describe(both, "both").heads == {
        "cross": (2, 1)
    }  # a server has it, and says this to the page
    other = translator("transformer-rms").model
    differing = Translator(one.config, one.tokenizers, Ensemble([one.model, other]))
    assert describe(differing, "both").heads == {}
