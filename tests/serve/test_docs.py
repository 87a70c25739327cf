"""docs/serving.md: its examples work, and its tables are complete."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from regard.serve import endpoints
from tests.stories.conftest import read_blocks

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
TEXT = PAGE.read_text("utf-8")
CURL = shutil.which("curl")


def examples(language: str, port: int) -> str:
    blocks = [block.text for block in read_blocks(PAGE) if block.language == language]
    return "".join(blocks).replace("127.0.0.1:8000", f"127.0.0.1:{port}")


@pytest.mark.skipif(CURL is None, reason="needs curl")
def test_curl_examples(client):
    commands = [shlex.split(line) for line in examples("bash", client.port).splitlines()]
    curls = [words for words in commands if words and words[0] == "curl"]
    outputs = [
        subprocess.run(
            [str(CURL), *words[1:], "--fail"], capture_output=True, text=True, check=True
        )
        for words in curls
    ]
    models, translated, scored, streamed = (output.stdout for output in outputs)
    assert '"de-en"' in models
    assert "Good morning" in translated
    assert "log_probs" in scored
    assert streamed.count("event: token") > 5


def test_python_example(client, capsys):
    exec(compile(examples("python", client.port), "client.py", "exec"), {})
    first, shape, forced = capsys.readouterr().out.splitlines()
    assert first == "A man is sleeping on a green bench."
    assert len(shape.split(",")) == 4
    assert forced.startswith("Someone")


def test_every_path_is_documented(client):
    described = client.get("/api/openapi.json").json["paths"]
    for path in described:
        assert path.replace("{name}", "NAME") in TEXT, path


def test_every_code_and_status_is_documented():
    source = "".join(
        path.read_text("utf-8") for path in Path(endpoints.__file__).parent.glob("*.py")
    )
    codes = set(re.findall(r'RequestError\(\s*\d+,\s*"([a-z-]+)"', source))
    assert {"no-token", "queue-full", "too-slow"} <= codes
    for code in codes - {"gone", "failed"}:  # no client sees them
        assert f"`{code}`" in TEXT, code
    for status in endpoints.STATUSES:
        assert re.search(rf"^\|.*\b{status}\b", TEXT, re.MULTILINE), status
