"""Every number has bounds: settings, requests, parameters of labs, options; and a model, its memory."""

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
import torch
import typer
from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo

import regard.serve.schema as served  # every module with tables that a user fills in
from regard import UserError, config, presets
from regard.cli import app
from regard.cli.common import parse_integers
from regard.compare.plan import plan
from regard.config import Table
from regard.config.reference import describe_type
from regard.interventions import KINDS
from regard.labs import LABS
from regard.models import build, memory
from regard.page import schema as page
from regard.translation import Decoding, Sampling

NUMBERS = (int, float)
# Requests; answers are ours, and their numbers are what was measured.
REQUESTS = [
    *(page.Decoding, page.Sampling, page.ModelsRequest, page.TranslateRequest, page.ExplainRequest),
    *(served.ModelRequest, served.TranslateTexts, served.StreamText, served.Pairs),
    *(served.InterveneText, served.RunLab),
]


def config_tables(root: type[Table] = config.Config) -> Iterator[type[Table]]:
    yield root
    for info in root.model_fields.values():
        for inner in nested_tables(info.annotation):
            yield from config_tables(inner)


def nested_tables(annotation: Any) -> Iterator[type[Table]]:
    if inspect.isclass(annotation) and issubclass(annotation, Table):
        yield annotation
    for member in get_args(annotation):
        yield from nested_tables(member)


TABLES = list(
    dict.fromkeys(
        [*config_tables(), *KINDS.values(), *(lab.parameters for lab in LABS.values()), *REQUESTS]
    )
)


def unbounded(annotation: Any, metadata: tuple[Any, ...]) -> Iterator[Any]:
    """The numbers in a type, also in unions and containers, that lack a lower or an upper bound."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *more = members
        more = [item for one in more for item in getattr(one, "metadata", [one])]
        yield from unbounded(inner, (*metadata, *more))
    elif origin in (Union, types.UnionType):
        for member in members:
            yield from unbounded(member, metadata)
    elif origin is not None and origin is not type and members:
        for member in members:  # the bounds of a list are of its length
            yield from unbounded(member, ())
    elif annotation in NUMBERS:
        has_lower = any(isinstance(bound, Ge | Gt | Interval) for bound in metadata)
        has_upper = any(isinstance(bound, Le | Lt | Interval) for bound in metadata)
        if not (has_lower and has_upper):
            yield annotation


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.__module__}.{table.__name__}")
def test_every_number_of_every_table_has_bounds(table: type[Table]) -> None:
    # The parameters of a lab come by name, and are validated by the lab's own table.
    exempt = {"parameters"} if table is served.RunLab else set()
    free = {
        name
        for name, info in table.model_fields.items()
        if list(unbounded(info.annotation, tuple(info.metadata)))
    }
    assert free == exempt & set(table.model_fields)


def test_the_law_notices_a_number_without_bounds() -> None:
    class Free(Table):
        a: int = 1
        b: tuple[int | None, ...] = ()
        c: Annotated[float, config.Training.model_fields["epochs"].metadata[0]] | None = None

    infos: dict[str, FieldInfo] = Free.model_fields
    assert all(list(unbounded(one.annotation, tuple(one.metadata))) for one in infos.values())


def commands(group: typer.Typer = app, path: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command by its name, those of groups too."""
    for command in group.registered_commands:
        assert command.callback
        yield f"{path}{command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance
        yield from commands(inner.typer_instance, f"{path}{inner.name} ")


@pytest.mark.parametrize(("name", "command"), dict(commands()).items(), ids=dict(commands()))
def test_every_number_on_the_command_line_has_bounds(name: str, command: Callable) -> None:
    for option, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        type_, *metadata = get_args(hint)
        if set(NUMBERS) & {type_, *get_args(type_)}:
            [info] = (one for one in metadata if isinstance(one, OptionInfo | ArgumentInfo))
            assert None not in (info.min, info.max), f"regard {name} --{option}"


def test_lists_of_integers_have_bounds() -> None:
    assert parse_integers("1, 5,10", "--beam", 10) == [1, 5, 10]
    for text in ("11", "0", "-1", "1,,2", "1" * 5000, "x"):
        with pytest.raises(UserError, match=r"--beam takes integers from 1 to 10, .*got") as caught:
            parse_integers(text, "--beam", 10)
        assert len(str(caught.value)) < 200


def test_settings_print_bounds_in_full() -> None:
    info = config.TransformerBase.model_fields["d_model"]
    described = describe_type(info.annotation, info.metadata)
    assert described == "integer, at least 1, at most 65,536"


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: Decoding(beam=10**9), "from 1 to 1,000: got 1000000000 and 1"),
        (lambda: Decoding(beam=1000, nbest=1001), "from 1 to 1,000: got 1000 and 1001"),
        (lambda: Decoding(batch_tokens=10**12), "from 1 to 1,000,000,000, or None: got 10000000"),
        (lambda: Sampling(temperature=1e300), r"at most 1e\+06, not 1e\+300"),
        (lambda: Sampling(top_k=10**12), "from 1 to 1,000,000,000, not 1000000000000"),
        (lambda: Sampling(seed=2**64), "seed must be from 0 to 9223372036854775807"),
    ],
)
def test_limits_in_python(construct: Callable, message: str) -> None:
    with pytest.raises(UserError, match=message):
        construct()


def test_a_comparison_says_how_many_runs_it_would_have(tmp_path) -> None:
    vary = ["training.learning_rate=1,2,3", "seed=" + ",".join(map(str, range(40)))]
    with pytest.raises(UserError, match="these are 2,400 runs, and a comparison has at most 1,000"):
        plan(["case", "case-rnn"], vary, [], [10], tmp_path)


# --- memory ---------------------------------------------------------------------------------------


def test_a_model_larger_than_the_memory_is_not_allocated() -> None:
    table = presets.load("case", ["model.hidden_dim=65536"]).model
    with pytest.raises(UserError, match=r"has 4\d,\d+,\d+,\d+ parameters, which need .* GiB"):
        build(table, 50, 50, joint=True)


def test_parameters_are_counted_without_memory(monkeypatch) -> None:
    """For every architecture: one byte less than its weights need is not enough."""
    monkeypatch.setattr(memory, "SMALL", 0)
    for name in ("case", "case-transformer", "case-deepseek", "multi30k-mamba", "case-gpt"):
        table = presets.load(name).model
        monkeypatch.setattr(memory, "memory_bytes", lambda: None)
        torch.manual_seed(3)
        model = build(table, 11, 13, joint=False)
        needed = 4 * sum(parameter.numel() for parameter in model.parameters())
        monkeypatch.setattr(memory, "memory_bytes", lambda needed=needed: needed)
        torch.manual_seed(3)
        again = build(table, 11, 13, joint=False)  # and the count changes no random number
        assert all(map(torch.equal, model.parameters(), again.parameters()))
        monkeypatch.setattr(memory, "memory_bytes", lambda needed=needed: needed - 1)
        with pytest.raises(UserError, match=f"{needed // 4:,} parameters"):
            build(table, 11, 13, joint=False)


@pytest.mark.parametrize(
    ("settings", "small"),
    [
        (["model.hidden_dim=128"], True),
        (["model.hidden_dim=65536"], False),
        (["model.encoder.layers=1000", "model.hidden_dim=1024"], False),
    ],
)
def test_only_a_large_model_is_counted(settings: list[str], small: bool) -> None:
    assert memory.is_small(presets.load("case", settings).model, vocab=100) is small
    assert not memory.is_small(presets.load("case").model, vocab=10**6)


def test_memory_of_a_container(monkeypatch, tmp_path) -> None:
    machine = memory.memory_bytes()
    assert machine
    for text, expected in {"1234567": 1234567, "max": None, "9" * 30: None}.items():
        (tmp_path / "memory.max").write_text(f"{text}\n")
        monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path / "memory.max")
        found = memory.memory_bytes() or 0
        assert found == expected if expected else found >= machine


@pytest.mark.parametrize(
    ("setting", "message"),
    {
        "search.max_extra=1000000000": "search.max_extra: got 1000000000; .* equal to 10000",
        f"data.train={10**18}": "data.train: got 1000000000000000000; .* equal to 10000000",
        "model.encoder.layers=10000000": "model.encoder.layers: got 10000000; .* equal to 1000",
        "training.learning_rate=1e308": r"training.learning_rate: got 1e\+308; .* equal to 1e\+30",
        'tokenizer={kind="bpe", vocab_size=1099511627776}': "tokenizer.vocab_size: got 10995.*1000000",
        f"seed={'9' * 4000}": r"seed: got 9{200}\.\.\.; it should be less than or equal to 9223",
    }.items(),
)
def test_a_setting_above_its_bound_is_one_sentence(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        presets.load("case", [setting])
