"""Changes of the structure of JSON, TOML and safetensors: another type, a huge number, a lost key."""

import json
import re
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.fuzz.bytes_mutations import flip_bits

# --- JSON -----------------------------------------------------------------------------------------

RAW = "@raw@{}@"  # a string that `dumps` replaces by text which is not JSON, or which json does not write
RAW_TEXTS = (
    *("NaN", "-Infinity", "1e999", "-0.0", "1" * 5000, "-" + "9" * 4299, "1" * 400 + ".5", "0x10"),
    *("[" * 5000 + "]" * 5000, "[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, "", "undefined"),
    *('"\\ud800"', '"\\u0000"', '"\t"', '"' + "x" * 100_000 + '"', "01", "+1", "1e-400"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 10**9, 10**18, 2**63, -(2**63), 2**64),
    *("", " ", "a", "NaN", "\0", "é\u2028", "../../x", "/etc/passwd", "[/]", [], {}, [[]], [None]),
    *([1], ["a"], {"a": 1}, {"": None}, {"kind": "pickle"}, [0] * 1000),
)


def walk(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list):
            yield from walk(value)


def select(tree: Any, random: Random) -> tuple[Any, Any]:
    """A random place. Half of the time among the first levels: a vocabulary has thousands of entries."""
    level = tree
    while random.random() < 0.5 and len(level):
        key = random.choice(list(level) if isinstance(level, dict) else range(len(level)))
        if random.random() < 0.5 or not isinstance(level[key], dict | list) or not level[key]:
            return level, key
        level = level[key]
    return random.choice(list(walk(tree)))


def change_tree(tree: Any, random: Random) -> None:
    """One change of a place in nested lists and dicts."""
    container, key = select(tree, random)
    value = container[key]
    kind = random.randrange(8)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[random.choice(("", "x", str(key) + "_", str(key).upper(), "\0"))] = container.pop(
            key
        )
    elif kind == 1:
        container.insert(key, value)
    elif kind == 2:
        other, at = select(tree, random)
        container[key] = json.loads(json.dumps(other[at]))
    elif kind == 3:
        container[key] = RAW.format(random.randrange(len(RAW_TEXTS)))
    elif kind == 4 and isinstance(value, int | float) and not isinstance(value, bool):
        container[key] = random.choice((value + 1, value - 1, -value, value * 2, value * 10**6))
    elif kind == 5 and isinstance(value, str):
        container[key] = random.choice(
            (value[:-1], value + "x", value.upper(), value * 3, value[::-1])
        )
    elif kind == 6 and isinstance(value, list):
        random.shuffle(value)
    else:
        container[key] = random.choice(VALUES)


def dumps(tree: Any, random: Random) -> str:
    text = json.dumps(tree, ensure_ascii=random.random() < 0.5)
    return re.sub('"@raw@(\\d+)@"', lambda match: RAW_TEXTS[int(match[1])], text)


def change_json(data: bytes, random: Random) -> bytes:
    tree = [json.loads(data)]
    change_tree(tree if random.random() < 0.02 else tree[0] or tree, random)
    text = dumps(tree[0] if tree else None, random)
    if random.random() < 0.1 and "{" in text:  # a key twice
        before, _, after = text.partition("{")
        keys = re.findall(r'"(\w+)":', text) or ["a"]
        text = f'{before}{{"{random.choice(keys)}": {random.choice(("1", "null", "[]"))}, {after}'
    return text.encode("utf-8", "surrogatepass")


def change_json_line(data: bytes, random: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        lines.insert(random.randrange(len(lines) + 1), lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        random.shuffle(lines)
    else:
        lines[at] = change_json(lines[at], random) + b"\n"
    return b"".join(lines)


# --- TOML -----------------------------------------------------------------------------------------

TOML_VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "true",
        "false",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "1e999",
        '""',
        '"x"',
        "[]",
        "{}",
    ),
    *(
        "9" * 5000,
        "10000000000",
        "1000000000000000000000",
        "0x" + "f" * 5000,
        "1979-05-27",
        "12:00:00",
    ),
    *(
        "[" * 5000 + "]" * 5000,
        "{a=" * 3000 + "1" + "}" * 3000,
        '"\\u0000"',
        '"\\ud800"',
        '"a[/]b"',
    ),
    *(
        "{kind = 'none'}",
        "{kind = 'pickle'}",
        "'../x'",
        '"' + "x" * 100_000 + '"',
        '"""',
        "[1, 'a']",
    ),
)


def change_toml(data: bytes, random: Random) -> bytes:
    lines = data.decode().splitlines()
    settings = [n for n, line in enumerate(lines) if "=" in line]
    at = random.choice(settings)
    name, _, value = (part.strip() for part in lines[at].partition("="))
    kind = random.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        name = random.choice(("x", '""', "'\\0'", "a.b.c", ".".join(["a"] * 5000), name + "_"))
        lines[at] = f"{name} = {value}"
    elif kind == 3:
        table = random.choice(
            ("[x]", "[[model]]", "[model.x]", "[" + ".".join("a" * 3000) + "]", "[")
        )
        lines.insert(at, table)
    elif kind == 4:
        other = lines[random.choice(settings)].partition("=")[2].strip()
        lines[at] = f"{name} = {other}"
    elif kind == 5 and re.fullmatch(r"\d+", value):
        lines[at] = f"{name} = {random.choice((int(value) + 1, int(value) * 10**6, -int(value)))}"
    else:
        lines[at] = f"{name} = {random.choice(TOML_VALUES)}"
    return "\n".join(lines).encode()


# --- safetensors ----------------------------------------------------------------------------------


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_safetensors(header: bytes, values: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + values


def change_header(data: bytes, random: Random) -> bytes:
    header, values = split_safetensors(data)
    change_tree(header, random)
    return join_safetensors(dumps(header, random).encode("utf-8", "surrogatepass"), values)


def change_tensor(data: bytes, random: Random) -> bytes:
    """Another dtype, shape, place or name of one tensor, or two tensors exchanged."""
    header, values = split_safetensors(data)
    names = [name for name in header if name != "__metadata__"]
    name, other = random.choice(names), random.choice(names)
    entry = header[name]
    kind = random.randrange(6)
    if kind == 0:
        entry["dtype"] = random.choice(
            ("F16", "BF16", "F64", "I32", "I8", "BOOL", "U64", "F8_E5M2", "X")
        )
    elif kind == 1:
        entry["shape"] = random.choice(
            (entry["shape"][::-1], [*entry["shape"], 1], [10**18], [-1], [0], [])
        )
    elif kind == 2:
        entry["data_offsets"] = random.choice(
            ([0, 0], [0, 10**18], [10, 2], header[other]["data_offsets"])
        )
    elif kind == 3:
        header[name + "x"] = header.pop(name)
    elif kind == 4:
        header[name], header[other] = header[other], header[name]
    else:
        del header[name]
    return join_safetensors(json.dumps(header).encode(), values)


def change_record(data: bytes, random: Random) -> bytes:
    """A JSON document inside the metadata, or any text of it."""
    header, values = split_safetensors(data)
    metadata = header.get("__metadata__") or {}
    if not metadata:
        return change_header(data, random)
    key = random.choice(list(metadata))
    try:
        metadata[key] = change_json(metadata[key].encode(), random).decode("utf-8", "replace")
    except ValueError:
        metadata[key] = random.choice(("", "int4", "0" * 64, metadata[key][::-1]))
    return join_safetensors(json.dumps(header).encode(), values)


def change_weights(data: bytes, random: Random) -> bytes:
    """A few values: NaN, infinity, huge, or with one bit changed."""
    header, values = split_safetensors(data)
    if len(values) < 8:
        return flip_bits(data, random)
    start = random.randrange(len(values) - 4) // 4 * 4
    number = struct.pack("<f", random.choice((float("nan"), float("inf"), 3e38, 0.0, 1.0, -1e-30)))
    flipped = flip_bits(values[start : start + 4], random)
    changed = values[:start] + random.choice((number, flipped)) + values[start + 4 :]
    return join_safetensors(json.dumps(header).encode(), changed)
