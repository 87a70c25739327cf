"""Hugging Face datasets from folders and from a local server, built on the spot."""

import gzip
import json

import pytest

from regard import presets
from regard.errors import UserError
from regard.text import arrow, corpus, hf
from tests.hub_server import serve

ROWS = [{"translation": {"de": f"der {n}", "en": f"the {n}"}, "id": n} for n in range(9)]
FIELDS = ["translation.de", "translation.en"]


def load(name, **settings):
    table = {"kind": "hf", "name": str(name), "fields": FIELDS} | settings
    return corpus.load(presets.validate({"data": table}, "test").data)


def lines(rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(folder, **contents):
    """write(folder, train_jsonl=rows): files of JSON lines."""
    for name, rows in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines(rows))


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path, train_jsonl=ROWS[:5], validation_jsonl=ROWS[5:7], test_jsonl=ROWS[7:])
    return tmp_path


def test_a_folder_of_json_lines(dataset):
    data = load(dataset)
    assert {split: len(pairs) for split, pairs in data.splits.items()} == {
        "train": 5,
        "val": 2,
        "test": 2,
    }
    assert data["val"] == [("der 5", "the 5"), ("der 6", "the 6")]
    assert load(dataset, fields=FIELDS[::-1])["val"][0] == ("the 5", "der 5")


def test_shards_folders_and_gzip(tmp_path):
    write(tmp_path, **{"data__train-00001-of-00002_jsonl": ROWS[3:5], "dev__a_jsonl": ROWS[5:6]})
    (tmp_path / "data" / "train-00000-of-00002.jsonl.gz").write_bytes(
        gzip.compress(lines(ROWS[:3]))
    )
    data = load(tmp_path)
    assert [source for source, _ in data["train"]] == [f"der {n}" for n in range(5)]
    assert data["val"] == [("der 5", "the 5")]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00002.parquet", "train"),
        ("validation/data.jsonl", "val"),
        ("de-en/dev.jsonl", "val"),
        ("train/test.jsonl", "test"),
        ("constraint.jsonl", None),
        ("latest.jsonl", None),
        ("my_eval_set.jsonl", "test"),
    ],
)
def test_a_split_is_a_word_of_the_path(name, split):
    assert hf.split_of(name) == split


def test_a_dataset_with_one_split_is_divided(tmp_path):
    rows = [{"source": f"a {n}", "target": f"b {n}"} for n in range(400)]
    write(tmp_path, train_jsonl=rows)
    data = load(tmp_path, fields=["source", "target"])
    assert sum(map(len, data.splits.values())) == 400
    assert set(data.splits) == {"train", "val", "test"}
    assert "has only a training split" in data.messages[0]


def test_empty_and_long_pairs_are_skipped_and_counted(tmp_path):
    odd = [{"translation": {"de": "", "en": "x"}}, {"translation": {"de": None, "en": "x"}}]
    odd += [{"translation": {"de": "y" * 30, "en": "x"}}]
    write(tmp_path, train_jsonl=ROWS[:2] + odd, val_jsonl=ROWS[2:3])
    data = load(tmp_path, max_characters=20)
    assert len(data["train"]) == 2
    assert data.messages == ("train: skipped 2 pairs with an empty side, 1 too long pairs",)


def test_a_subset_is_a_folder(tmp_path):
    write(tmp_path, **{"de-en__train_jsonl": ROWS[:2], "de-en__val_jsonl": ROWS[2:3]})
    write(tmp_path, **{"fr-en__train_jsonl": ROWS[:7]})
    assert len(load(tmp_path, subset="de-en")["train"]) == 2
    with pytest.raises(UserError, match=r'data.subset: .* no folder "de-em".*Did you mean "de-en"'):
        load(tmp_path, subset="de-em")


def test_from_the_hub(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        files = {"train.jsonl": lines(ROWS[:5]), "val.jsonl": lines(ROWS[5:]), "script.py": b"evil"}
        hub.files, hub.large = {"datasets/me/pairs": files}, {"train.jsonl"}
        data = load("hf:me/pairs@v1")
        assert len(data["train"]) == 5
        assert not any("script" in request for request in hub.requests)
        with pytest.raises(UserError, match=r'has no public dataset "me/other"'):
            load("hf:me/other")


@pytest.mark.parametrize("name", ["train.parquet", "train/data-00000-of-00001.arrow"])
def test_arrow_files_need_an_extra(name, tmp_path, monkeypatch):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()

    def fail(module):
        raise ImportError(module)

    monkeypatch.setattr(arrow, "import_module", fail)
    with pytest.raises(UserError, match=r'needs pyarrow: pip install "regard\[hf\]"'):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_parquet_and_saved_datasets(kind, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `hf`")
    for split, rows in {"train": ROWS[:5], "validation": ROWS[5:]}.items():
        table = arrow.Table.from_pylist(rows)
        if kind == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
            continue
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text("{}")
        path = str(tmp_path / split / "data-00000-of-00001.arrow")
        with arrow.OSFile(path, "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    assert load(tmp_path)["val"] == [(f"der {n}", f"the {n}") for n in range(5, 9)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"fields": ["translation.dee", "translation.en"]},
            r'no field "translation.dee". Did you mean "translation.de"\? It has translation.de, '
            r"translation.en, id: write data.fields",
        ),
        ({"fields": ["id", "translation.en"]}, r'"id" in .* is not text but int'),
        ({"fields": ["translation", "id"]}, r'"translation" in .* is not text but dict'),
    ],
)
def test_wrong_fields(settings, message, dataset):
    with pytest.raises(UserError, match=message):
        load(dataset, **settings)


def test_other_mistakes(dataset, tmp_path_factory):
    with pytest.raises(UserError, match=r"there is no folder nothing. .* hf:user/name"):
        load("nothing")
    (dataset / "validation.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no validation split \(it has train, test\)"):
        load(dataset)
    (dataset / "train.jsonl").write_text("[1]\n")
    with pytest.raises(UserError, match=r"train.jsonl cannot be read: line 1 is not a JSON object"):
        load(dataset)
    with pytest.raises(UserError, match=r"has no pairs for training: looked for files with one of"):
        load(tmp_path_factory.mktemp("empty"))
