"""JSON: what is written is JSON, and whatever is read is a document that fits, or one error."""

import ast
import json
import math
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from regard import documents, presets, schemas
from regard.documents import Document
from regard.errors import UserError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "regard"
HASH = "0" * 64
WORDS = {"kind": "words", "lower": False, "strict": True, "symbols": ["<U>"], "pieces": ["a", "b"]}
FIGURES = {"val_loss": 1.5, "best_step": 3, "steps": 4, "training_seconds": 2.5, "parameters": 7}
RESULT = {
    "beam": 1,
    "bleu": 12.5,
    "bleu_lower": 13.0,
    "chrf": 20.0,
    "exact_match": 0.5,
    "sentences": 2,
    "outputs": ["a", "b"],
    "signatures": {"bleu": "x", "bleu_lower": "y"},
}
EVALUATION = {"split": "test", "perplexity": 3.5, "results": [RESULT]}
SAMPLES: dict[type[Document], dict[str, Any]] = {
    schemas.Settings: {"description": "x", "data": {}, "model": {}, "tokenizer": {}},
    schemas.Card: {
        "versions": {"torch": "2"},
        "device": "cpu",
        "seed": 1,
        "data": {"train": "ab"},
        "figures": FIGURES,
        "config": {"model": {"kind": "recurrent"}},
        "terms": {"licence": "none"},
    },
    schemas.Evaluation: EVALUATION,
    schemas.ComparedEvaluation: EVALUATION,
    schemas.StartEvent: {"event": "start", "data": {"train": "ab"}, "threads": 2, "versions": {}},
    schemas.ValidationEvent: {"event": "validation", "step": 2, "loss": 1.5, "seconds": 0.5},
    schemas.AverageEvent: {
        "event": "average",
        "step": 2,
        "steps": [1, 2],
        "loss": 1.5,
        "is_saved": True,
    },
    schemas.Tokenizers: {"joint": WORDS, "max_tokens": 5, "source_eos": True},
    schemas.Architecture: {"hf_config": {}, "logit_scale": 1.0, "suppressed_ids": [0]},
    schemas.Record: {"step": 1, "files": {"config.toml": HASH}, "checksum": HASH},
    schemas.AugmentProgress: {"lines": 3, "bytes": 5, "seconds": 0.5, "counts": {}, "origin": {}},
    schemas.AugmentCard: {"recipe": {}, "counts": {"pairs": 3}, "seconds": 0.5},
    schemas.ExportRecord: {"run": "ab", "files": {"model.bin": HASH}},
    schemas.RepositoryListing: {"sha": "0" * 40, "siblings": [{"rfilename": "a", "blobId": "b"}]},
}


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


# --- writing --------------------------------------------------------------------------------------


def test_nan_and_infinity_are_null():
    document = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2)}], "d": date(2020, 1, 2)}
    assert json.loads(documents.dumps(document)) == {
        "a": None,
        "b": [1.5, None, {"c": [None, 2]}],
        "d": "2020-01-02",
    }
    assert documents.dumps({"b": 1, "a": 2}, sort_keys=True) == '{"a": 2, "b": 1}'
    with pytest.raises(TypeError):
        documents.dumps({"a": object()})


def test_nothing_else_writes_json():
    """Only `documents.dumps` knows that JSON has no NaN. The sandbox prints and stores none."""
    allowed = {SOURCE / "documents.py", SOURCE / "labs" / "grading" / "worker" / "wire.py"}
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted({*SOURCE.rglob("*.py")} - allowed)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("dump", "dumps", "JSONEncoder")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    ]
    assert found == []


# --- reading --------------------------------------------------------------------------------------

NOT_JSON = {
    "nothing": (b"", "Expecting value"),
    "half": (b'{"a": 1', "Expecting ',' delimiter"),
    "a list": (b"[1]", r"it holds \[1\], not a JSON object"),
    "a number": (b"7", "it holds 7, not"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    "NUL": (b"\0" * 9, "Expecting value"),
    "deep lists": (b"[" * 200_000, "nested more than 64 deep"),
    "deep objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 deep"),
    "a long integer": (b'{"a": ' + b"1" * 5000 + b"}", 'integer "1111.* is too large'),
    "a large integer": (b'{"a": 9223372036854775808}', "is too large"),
    "a large number": (b'{"a": 1e999}', 'number "1e999" is too large'),
    "half a character": (b'{"a": ["\\ud800"]}', "half of a surrogate pair"),
    "half a character in a name": (b'{"\\udfff": 1}', "half of a surrogate pair"),
    "a name twice": (b'{"a": {"b": 1, "b": 2}}', '"b" occurs twice'),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_json_is_one_error(tmp_path: Path, name: str) -> None:
    content, reason = NOT_JSON[name]
    path = write(tmp_path / "card.json", content)
    with pytest.raises(
        UserError, match=rf"card\.json is damaged: .*{reason}.*\. Restore it"
    ) as error:
        documents.read(path)
    assert "\n" not in str(error.value)


def test_what_json_allows(tmp_path: Path) -> None:
    text = '{"née": [1, -2.5e3, true, null], "😀": "\\ud83d\\ude00", "nan": NaN, "low": -Infinity}'
    path = write(tmp_path / "a.json", text.encode())
    expected = {"née": [1, -2500.0, True, None], "😀": "😀", "nan": None, "low": None}
    assert documents.read(path) == expected


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*none\.json"):
        documents.read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory"):
        documents.read(tmp_path)
    with pytest.raises(UserError, match=r"cannot be read: embedded null byte"):
        documents.read(tmp_path / "a\0b")


@pytest.mark.parametrize("schema", SAMPLES, ids=lambda schema: schema.__name__)
def test_a_sample_fits(tmp_path: Path, schema: type[Document]) -> None:
    sample = SAMPLES[schema]
    assert documents.read(write(tmp_path / "a.json", sample), schema) == sample


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        place
        for key, one in inner
        for place in (
            (*path, key),
            *(places(one, (*path, key)) if isinstance(one, dict | list) else ()),
        )
    ]


WRONG: list[Any] = [None, True, -1, 2.5, "x", [], {}, [None], "\0", 2**62]


@pytest.mark.parametrize("schema", SAMPLES, ids=lambda schema: schema.__name__)
def test_a_wrong_value_fits_or_is_one_error(tmp_path: Path, schema: type[Document]) -> None:
    """At every place of the sample, every kind of value: an error names file and field."""
    messages, path = [], tmp_path / "a.json"
    for place in places(SAMPLES[schema]):
        for wrong in WRONG:
            document = json.loads(json.dumps(SAMPLES[schema]))
            table = document
            for key in place[:-1]:
                table = table[key]
            table[place[-1]] = wrong
            try:
                documents.read(write(path, document), schema)
            except UserError as error:
                messages.append((str(error), str(place[0])))
    assert len(messages) >= 5
    for message, field in messages:
        assert message.startswith(f"{path} is damaged: ")
        assert "\n" not in message
        assert field in message or "it should have" in message


NAMED: dict[str, tuple[type[Document], Callable[[dict[str, Any]], object], str]] = {
    "a text": (
        schemas.Card,
        lambda card: card["figures"].update(val_loss="x"),
        r'figures\.val_loss: got "x"; it should be a valid number\. Restore it from a copy',
    ),
    "nothing": (schemas.Card, lambda card: card.pop("device"), "device is missing"),
    "an object": (schemas.Card, lambda card: card.update(figures=3), "it should be an object"),
    "a fraction": (
        schemas.Evaluation,
        lambda one: one["results"][0].update(exact_match=1.5),
        r"results\.0\.exact_match: got 1\.5; .*\. Delete it, and run the command",
    ),
    "an output": (
        schemas.Evaluation,
        lambda one: one["results"][0]["outputs"].pop(),
        r"results\.0: 1 outputs for 2 sentences",
    ),
    "outputs": (
        schemas.ComparedEvaluation,
        lambda one: one["results"][0].pop("outputs"),
        "outputs or signatures are missing",
    ),
    "threads": (schemas.StartEvent, lambda one: one.update(threads=10**9), "threads: got 1000000"),
    "an unknown field": (
        schemas.Tokenizers,
        lambda one: one["joint"].update(colour="red"),
        "colour is not a known field",
    ),
    "no side": (schemas.Tokenizers, lambda one: one.pop("joint"), 'either "joint", or "source"'),
    "a row": (
        schemas.Tokenizers,
        lambda one: one.update(
            joint={"kind": "pretrained", "lower": False, "engine": "{}", "rows": 5, "end": 5}
            | {"unknown": None}
        ),
        "a special token has no row",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_error_names_the_field(tmp_path: Path, name: str) -> None:
    schema, change, message = NAMED[name]
    document = json.loads(json.dumps(SAMPLES[schema]))
    change(document)
    with pytest.raises(UserError, match=rf"a\.json is damaged: .*{message}"):
        documents.read(write(tmp_path / "a.json", document), schema)


def test_published_cards_fit() -> None:
    """Those in results/ were written by many versions."""
    cards = [*ROOT.glob("results/*/cards/*.json"), *SOURCE.glob("shipped/*/card.json")]
    assert len(cards) > 200
    for path in cards:
        documents.read(path, schemas.Card)


# --- lines ----------------------------------------------------------------------------------------

START, VALIDATION, AVERAGE = (json.dumps(SAMPLES[s]).encode() for s in schemas.EVENTS.values())
LINES = {
    "complete": (START + b"\n" + VALIDATION + b"\n" + AVERAGE + b"\n", 3),
    "the last line without its end": (START + b"\n" + VALIDATION, 2),
    "half a line": (START + b"\n" + VALIDATION[:-5], 1),
    "bytes after the last line": (START + b"\n\xff\0\0", 1),
    "an event of another version": (START + b'\n{"event": "party", "x": 1}\n', 2),
    "nothing": (b"", 0),
}
DAMAGED_LINES = {
    "half a line in the middle": (START[:-5] + b"\n" + VALIDATION + b"\n", "line 1: Expecting"),
    "an empty line": (START + b"\n\n" + VALIDATION + b"\n", "line 2: Expecting value"),
    "not UTF-8": (START + b"\n\xff\n" + VALIDATION + b"\n", "line 2: byte 0 is not UTF-8"),
    "a list": (b"[]\n", r"line 1: it holds \[\], not a JSON object"),
    "no loss": (b'{"event": "validation", "step": 1, "seconds": 1}\n', "line 1: loss is missing"),
    "a wrong last line": (b'{"event": "validation", "step": "x"}', 'line 1: step: got "x"'),
    "no event": (b"{}\n", "line 1: event is missing"),
    "an event that is a list": (b'{"event": []}\n', r"line 1: event: got \[\]"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_half_written_last_line_is_left_out(tmp_path: Path, name: str) -> None:
    content, count = LINES[name]
    path = write(tmp_path / "metrics.jsonl", content)
    assert len(documents.read_lines(path, schemas.event_schema)) == count


@pytest.mark.parametrize("name", DAMAGED_LINES)
def test_another_damaged_line_is_an_error_with_its_number(tmp_path: Path, name: str) -> None:
    content, message = DAMAGED_LINES[name]
    path = write(tmp_path / "metrics.jsonl", content)
    with pytest.raises(UserError, match=rf"metrics\.jsonl is damaged: {message}"):
        documents.read_lines(path, schemas.event_schema)


# --- anything -------------------------------------------------------------------------------------


def mutate(content: bytes, rng: random.Random) -> bytes:
    """A byte changed, a part removed, repeated, replaced or cut off."""
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.randrange(1, 40))
    part = rng.choice(
        [b"", bytes([rng.randrange(256)]), b"[" * 99, b"9" * 400, content[start:end] * 2]
    )
    return content[:start] + part + content[rng.choice([start + 1, end, len(content)]) :]


@pytest.mark.parametrize("schema", SAMPLES, ids=lambda schema: schema.__name__)
def test_any_bytes_are_a_document_or_an_error(tmp_path: Path, schema: type[Document]) -> None:
    content, rng, path = json.dumps(SAMPLES[schema]).encode(), random.Random(3), tmp_path / "a"
    messages = []
    for _ in range(150):
        path.write_bytes(mutate(content, rng))
        try:
            documents.read(path, schema)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all("\n" not in message and message.encode() for message in messages)


TOML = {
    "not UTF-8": (b'a = "\xff"', "byte 5 is not UTF-8"),
    "deep lists": (b"a = " + b"[" * 5000, "nested more than 64 deep"),
    "deep keys": (b".".join([b"a"] * 5000) + b" = 1", "nested more than 64 deep"),
    "a long integer": (b"a = " + b"1" * 5000, "an integer with too many digits"),
    "NUL": (b"a = 1\0", "Expected newline"),
}


@pytest.mark.parametrize("name", TOML)
def test_what_is_not_toml_is_one_error(tmp_path: Path, name: str) -> None:
    content, reason = TOML[name]
    with pytest.raises(UserError, match=rf"config\.toml is not valid TOML: .*{reason}") as error:
        presets.read_file(write(tmp_path / "config.toml", content))
    assert "\n" not in str(error.value)
