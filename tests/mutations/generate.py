"""Mutants of a module, made by rule: each differs from it in one small place, which a test should notice."""

import ast
import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The tests that concern a module: the second group runs only for mutants that survive the first.
TESTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "files.py": (
        ("tests/test_files.py",),
        ("tests/training/test_resume.py", "tests/compare/test_processes.py", "tests/faults"),
    ),
    "signals.py": (("tests/test_signals.py",), ("tests/training/test_resume.py", "tests/faults")),
    "training/checkpoint.py": (("tests/training/test_resume.py",), ("tests/faults",)),
    "training/snapshots.py": (("tests/training/test_average.py",), ("tests/faults",)),
    "training/folder.py": (
        ("tests/training/test_resume.py",),
        ("tests/stories/test_same_data.py", "tests/faults"),
    ),
    "training/writer.py": (("tests/training/test_writer.py",), ("tests/training/test_resume.py",)),
    "models/weights.py": (("tests/models/test_weights.py",), ("tests/training/test_resume.py",)),
    "text/cache.py": (("tests/text/test_cache.py",), ("tests/faults",)),
}
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}


@dataclass(frozen=True)
class Mutant:
    """`file`, relative to the package, with `source` instead of its own."""

    file: str
    line: int
    rule: str
    source: str

    def diff(self, original: str) -> str:
        lines = difflib.unified_diff(
            original.splitlines(), self.source.splitlines(), n=0, lineterm=""
        )
        return "\n".join(list(lines)[2:])


def mutate(file: str, source: str) -> list[Mutant]:
    """All mutants of a module."""
    mutants = []
    for node, rule, replacement in find_mutations(ast.parse(source)):
        changed = replace_node(source, node, ast.unparse(replacement))
        compile(changed, file, "exec")
        mutants.append(Mutant(file, node.lineno, rule, changed))
    return mutants


def choose(package: Path, names: list[str], seed: int) -> list[Mutant]:
    """The mutants of several modules in random order, so that any time limit tries some of each."""
    mutants = [
        mutant for name in names for mutant in mutate(name, (package / name).read_text("utf-8"))
    ]
    random.Random(seed).shuffle(mutants)
    return mutants


def find_mutations(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.AST]]:
    """(node, rule, what replaces it): not in messages, annotations and docstrings."""
    for node in walk(tree):
        match node:
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete():
                yield node, "drop the statement", ast.Pass()
            case ast.Return(value=ast.expr()):
                yield node, "return nothing", ast.Return(ast.Constant(None))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield test, "negate the condition", ast.UnaryOp(ast.Not(), test)
            case ast.BoolOp(op=op, values=values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield node, "and for or", ast.BoolOp(other, values)
            case ast.Compare(left=left, ops=[op], comparators=comparators) if (
                type(op) in COMPARISONS
            ):
                other = COMPARISONS[type(op)]
                yield node, "another comparison", ast.Compare(left, [other], comparators)
            case ast.Call(func=ast.Name(id="suppress"), args=[_, *_]):
                yield node, "suppress nothing", ast.Call(node.func, [], [])
            case ast.Call(args=[first, second, *rest]) if not has_star(node):
                yield (
                    node,
                    "swap arguments",
                    ast.Call(node.func, [second, first, *rest], node.keywords),
                )
            case ast.Constant(value=bool()):
                yield node, "the other truth", ast.Constant(not node.value)
            case ast.Constant(value=int()) | ast.Constant(value=float()):
                yield node, "another number", ast.Constant(node.value + 1)


def has_star(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in call.args)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node, without those whose change no user sees or that are text."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "sys.platform == 'win32'":
        for child in node.orelse:
            yield from walk(child)
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walk(child)


def replace_node(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """The source with `text` in the place of a node, in brackets if it is an expression."""
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    data = f"({text})" if isinstance(node, ast.expr) else text
    whole = source.encode()
    return (whole[:start] + data.encode() + whole[end:]).decode()
