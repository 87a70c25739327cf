"""The files of a run belong together: one that was changed is noticed."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

import regard
from regard import checksums, shipped
from regard.errors import RegardWarning, UserError
from regard.loading import load, read_config
from regard.models import weights


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(shipped.FOLDER / "de-en-gru", tmp_path / "run")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


@pytest.mark.parametrize("name", shipped.names())
def test_shipped_weights_name_the_files_they_belong_to(name):
    folder = shipped.FOLDER / name
    _, record = weights.read(folder / "model.safetensors")
    assert record["files"] == checksums.of_run(folder)
    assert set(record["files"]) == {"config.toml", "tokenizer.json"}


def test_another_vocabulary_of_the_same_size_is_an_error(run):
    path = run / "tokenizer.json"
    record = json.loads(path.read_text("utf-8"))
    side = record.get("joint") or record["target"]
    side["pieces"][-2:] = side["pieces"][:-3:-1]
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(
        UserError, match=r"tokenizer\.json is damaged: it has changed since the wei"
    ):
        load(run)
    recorded = weights.read_record(run / "model.safetensors")["files"]
    path.unlink()
    with pytest.raises(
        UserError, match=r"there is no file .*tokenizer\.json, which the weights need"
    ):
        checksums.verify_run(run, recorded)


def test_comments_and_layout_of_a_config_do_not_matter(run):
    path = run / "config.toml"
    path.write_text("# mine\n" + path.read_text("utf-8").replace(" = ", "  =  "), "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(run)


def test_a_changed_setting_is_a_warning(run):
    edit(run / "config.toml", "length_penalty = ", "length_penalty = 0.5 # ")
    with pytest.warns(
        RegardWarning, match=r"config\.toml has changed since the weights were saved"
    ):
        load(run)


def test_weights_of_an_earlier_version_have_no_checksums(run):
    path = run / "model.safetensors"
    tensors, _ = weights.read(path)
    weights.save(path, tensors, {"step": 1})
    edit(run / "config.toml", "length_penalty = ", "length_penalty = 0.5 # ")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(run)


def test_a_saved_model_has_checksums(run, tmp_path):
    regard.load(run).save(tmp_path / "copy")
    recorded = weights.read_record(tmp_path / "copy" / "model.safetensors")["files"]
    assert recorded == checksums.of_run(tmp_path / "copy")
    assert read_config(tmp_path / "copy") == read_config(run)
    (tmp_path / "copy").rename(tmp_path / "moved")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "moved")
