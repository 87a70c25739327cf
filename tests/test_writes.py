"""Every write of the library goes through `regard.files`: complete or absent, an error is one sentence."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "regard"
HOME = "files.py"
# Methods and functions that change a file system, whatever they are called on.
WRITERS = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "rmdir", "unlink", "rename"),
    *("symlink_to", "hardlink_to", "rmtree", "copyfile", "copy2", "copytree", "move", "truncate"),
    *("savefig", "save_file", "tofile", "mkdtemp", "mkstemp", "SummaryWriter"),
    *("TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile"),
}
# Common words, which write only as functions of these modules.
QUALIFIED = {("np", "save"), ("torch", "save"), ("os", "replace"), ("os", "remove"), ("os", "link")}
THROUGH = {"write_with", "write_folder"}  # they guard what is called in their arguments

TEMPORARY = "a folder of the system's for temporary files, deleted at the end"
ALLOWED = {
    ("api.py", "TemporaryDirectory"): TEMPORARY,
    ("benchmarks/data.py", "TemporaryDirectory"): TEMPORARY,
    ("benchmarks/data.py", "open"): "generated pairs, in that folder",
    ("benchmarks/data.py", "write_text"): "the settings, in that folder",
    ("benchmarks/engines.py", "TemporaryDirectory"): TEMPORARY,
    ("benchmarks/large_data.py", "TemporaryDirectory"): TEMPORARY,
    ("benchmarks/peers.py", "TemporaryDirectory"): TEMPORARY,
    ("cli/export.py", "mkdtemp"): "a folder for the browser, guarded by report_errors",
    ("labs/grading/launch.py", "TemporaryFile"): "what the worker prints until it has started",
    ("labs/grading/sandbox.py", "TemporaryFile"): "the output of the answer",
    ("labs/grading/worker/confine.py", "open"): "a setting of the kernel, not a file",
    ("labs/measurements/training.py", "TemporaryDirectory"): TEMPORARY,
    ("serve/catalogue.py", "replace"): "the models of a pool: no file",
    ("serve/load_test.py", "TemporaryDirectory"): TEMPORARY,
    ("serve/load_test.py", "open"): "the log of a server, in that folder",
    ("text/cache.py", "open"): "the temporary file of `files.write_with`",
    ("text/download.py", "mkdir"): "a download goes on where it stopped: guarded by `fetch`",
    ("text/download.py", "open"): "the same",
    ("text/download.py", "truncate"): "the same",
    ("text/download.py", "unlink"): "the same",
    ("text/download.py", "rename"): "the same",
    ("text/download.py", "replace"): "the same",
    ("training/launch.py", "TemporaryDirectory"): TEMPORARY,
    ("training/checkpoint.py", "rmdir"): "of an empty folder; nothing depends on it",
    (
        "training/loop.py",
        "SummaryWriter",
    ): "TensorBoard writes its own files, guarded by report_errors",
}


def is_write(call: ast.Call) -> str:
    """The name of what writes, or "" if nothing does."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "open":
        arguments = [*call.args, *(key.value for key in call.keywords if key.arg == "mode")]
        modes = [each.value for each in arguments if isinstance(each, ast.Constant)]
        texts = [mode for mode in modes if isinstance(mode, str) and len(mode) <= 3]
        return name if any(set(mode) & set("wax+") for mode in texts) else ""
    if isinstance(function, ast.Attribute):
        owner = getattr(function.value, "id", "")
        is_path_method = name == "replace" and len(call.args) == 1 and not call.keywords
        if (owner, name) in QUALIFIED or (is_path_method and owner != "self"):
            return name
    elif name.islower():  # a function of our own, such as `truncate`
        return ""
    return name if name in WRITERS else ""


def find_writes(tree: ast.AST) -> Iterator[str]:
    """The writes of a module, but for those in a call of `files.write_with`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            if getattr(node.func, "attr", "") in THROUGH:
                continue
            if name := is_write(node):
                yield name
        yield from find_writes(node)


def test_every_write_goes_through_files():
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / HOME
        for name in find_writes(ast.parse(path.read_text("utf-8")))
    }
    assert found - ALLOWED.keys() == set(), "write with a function of regard/files.py"
    assert ALLOWED.keys() - found == set(), "no longer there: take it off the list"


def test_writes_are_found():
    for text in (
        'open(p, "w")',
        'p.open("ab")',
        'gzip.open(p, mode="xb")',
        "p.write_text(t)",
        "os.replace(a, b)",
        "a.replace(b)",
        "np.save(p, a)",
        "figure.savefig(p)",
        "p.parent.mkdir()",
        "shutil.rmtree(p)",
    ):
        assert list(find_writes(ast.parse(text))), text
    for text in (
        "open(p)",
        'p.open("rb")',
        'text.replace("a", "b")',
        "files.write(p, t)",
        "files.write_with(p, lambda t: np.save(t, a))",
        "dataclasses.replace(a, b=1)",
    ):
        assert not list(find_writes(ast.parse(text))), text
