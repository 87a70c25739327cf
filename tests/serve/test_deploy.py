"""Dockerfile and compose.yaml, without Docker: what they copy exists, and what they run is ours."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from regard import cli
from regard.serve.settings import Limits

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8")
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "ARG", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK"} | {
    "ENTRYPOINT",
    "CMD",
}


def read_instructions() -> list[tuple[str, str]]:
    """(instruction, arguments), with continued lines joined and comments left out."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    joined = lines.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined if line.strip()]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]["regard"]


def last(name: str) -> str:
    return [arguments for instruction, arguments in read_instructions() if instruction == name][-1]


def parse_command(words: list[str]) -> dict:
    """The parameters of `regard WORDS`, as the command line parses them."""
    group = typer.main.get_command(cli.app)
    context = group.make_context("regard", list(words))
    _, command, rest = group.resolve_command(context, list(words))  # type: ignore[attr-defined]
    return command.make_context("serve", rest, parent=context).params


def test_every_instruction_is_one():
    assert {name for name, _ in read_instructions()} <= INSTRUCTIONS


def test_what_is_copied_is_there_and_not_ignored():
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    for instruction, arguments in read_instructions():
        if instruction == "COPY" and not arguments.startswith("--from"):
            for path in shlex.split(arguments)[:-1]:
                assert (ROOT / path).exists()
                assert path in kept


def test_the_extra_that_is_installed_exists():
    [extra] = re.findall(r'"\.\[(\w+)\]"', TEXT)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_image_runs_a_command_of_ours(compose):
    entry = json.loads(last("ENTRYPOINT"))
    assert entry[0] == "regard"
    for words in (json.loads(last("CMD")), compose["command"]):
        parameters = parse_command([*entry[1:], *words])
        assert (parameters["host"], str(parameters["port"])) == ("0.0.0.0", last("EXPOSE"))
        assert [str(run) for run in parameters["runs"]] == ["de-en"]
    assert f":{last('EXPOSE')}/healthz" in last("HEALTHCHECK")
    assert last("USER") != "root"


def test_compose_needs_a_token_and_waits_for_what_has_begun(compose):
    assert compose["build"] == "."
    assert "REGARD_TOKEN:?" in compose["environment"]["REGARD_TOKEN"]
    assert compose["ports"] == [f"127.0.0.1:8000:{last('EXPOSE')}"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > Limits().seconds
