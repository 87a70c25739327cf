"""Write a file with safetensors, which opens it in Rust.

Once: wrote the file.
Harm: wrote
Stopped by: seccomp, landlock
"""

from pathlib import Path

from safetensors.torch import save_file

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    save_file({"keys": keys}, str(NEW))
    return keys[0]
