"""One random change of a file: of its bytes, or of its structure, as a form of file has it.

`mutate(data, form, random)`; the same `random` gives the same change. A change is one operation, as one
accident or one edit is: two together could also delete a checksum and then change what it was made for.
"""

import gzip
import io
import struct
import zipfile
from random import Random

from tests.fuzz.bytes_mutations import BYTES, Mutation, change_text_line
from tests.fuzz.document_mutations import (
    change_header,
    change_json,
    change_json_line,
    change_record,
    change_tensor,
    change_toml,
    change_weights,
)


def change_npy(data: bytes, random: Random) -> bytes:
    """The header of a NumPy array: dtype, order, shape."""
    size = 10 + struct.unpack("<H", data[8:10])[0]
    header = data[10:size].decode("latin-1")
    old, new = random.choice(
        (
            *(("<i4", "|O"), ("<i4", "<i8"), ("<i4", ">i4"), ("<i4", "<f4"), ("<i4", "|V4")),
            *(
                ("False", "True"),
                ("(", "(2, "),
                ("(", "(-"),
                ("(", "(10000000000000000, "),
                ("shape", "x"),
            ),
            *(
                (",)", ")"),
                (",), ", ",), 'x': 1, "),
                ("'descr'", "__import__('os')"),
                ("(", "((" * 500),
            ),
        )
    )
    changed = header.replace(old, new, 1).encode("latin-1")
    changed = changed.ljust(size - 10) if random.random() < 0.5 else changed
    return data[:8] + struct.pack("<H", len(changed) % 65536) + changed + data[size:]


def change_gzip(data: bytes, random: Random) -> bytes:
    """The text inside, or what the archive says about it."""
    text = gzip.decompress(data)
    if random.random() < 0.2:
        return gzip.compress(bytes(2**22), mtime=0)  # a small bomb
    return gzip.compress(random.choice((change_text_line, *BYTES))(text or b"\n", random), mtime=0)


def change_zip(data: bytes, random: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        [name] = archive.namelist()
        text = archive.read(name)
    kind = random.randrange(4)
    if kind == 0:
        name = random.choice(("../../x", "/x", "C:\\x", "x\0y", "", name + "/"))
    elif kind == 1:
        text = bytes(2**22)
    else:
        text = random.choice((change_text_line, *BYTES))(text, random)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name or "x"), text)
    return out.getvalue()


# By form; each is chosen half of the time, and BYTES otherwise.
FORMS: dict[str, tuple[Mutation, ...]] = {
    "binary": BYTES,
    "text": (change_text_line,),
    "json": (change_json,),
    "jsonl": (change_json_line, change_json_line, change_text_line),
    "toml": (change_toml,),
    "safetensors": (change_header, change_tensor, change_record, change_weights),
    "npy": (change_npy,),
    "gzip": (change_gzip,),
    "zip": (change_zip,),
}


def mutate(data: bytes, form: str, random: Random) -> bytes:
    """The bytes after one change, which are never the same."""
    for _ in range(100):
        mutation = random.choice(FORMS[form] if random.random() < 0.5 else BYTES)
        changed = mutation(data, random)
        if changed != data:
            return changed
    raise AssertionError("no mutation changes this file")
