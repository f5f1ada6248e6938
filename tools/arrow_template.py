"""Makes broker/stream/template.py: the octets of a segment's schema and of its record batches, as
pyarrow writes them.

    python tools/arrow_template.py > broker/stream/template.py

The broker writes Arrow without pyarrow: it patches these octets. A test makes them anew and
compares.
"""

from __future__ import annotations

import base64
import io
import struct
import textwrap
import zlib

import pyarrow as pa

#: What a segment says of itself. The values are patched, so they have a fixed width.
METADATA = {
    "trellis.format": "1",
    "trellis.stream": "1" * 20,
    "trellis.epoch": "2" * 20,
    "trellis.base": "3" * 20,
}
#: The value of a batch's checksum before it is known.
UNSUMMED = "00000000"
_INSTANT, _SECOND = pa.timestamp("us", tz="UTC"), pa.timestamp("s", tz="UTC")
COLUMNS = (
    ("offset", pa.int64(), False),
    ("published_at", _INSTANT, False),
    ("vhost", pa.string(), False),
    ("exchange", pa.string(), False),
    ("topic", pa.string(), False),
    ("protocol", pa.string(), False),
    ("qos", pa.uint8(), False),
    ("publisher", pa.string(), False),
    ("routed", pa.int32(), False),
    ("size", pa.int64(), False),
    ("content_type", pa.string(), True),
    ("content_encoding", pa.string(), True),
    ("delivery_mode", pa.uint8(), True),
    ("priority", pa.uint8(), True),
    ("correlation_id", pa.string(), True),
    ("reply_to", pa.string(), True),
    ("expiration", pa.string(), True),
    ("message_id", pa.string(), True),
    ("timestamp", _SECOND, True),
    ("type", pa.string(), True),
    ("user_id", pa.string(), True),
    ("app_id", pa.string(), True),
    ("cluster_id", pa.string(), True),
    ("headers", pa.string(), True),
    ("content_header", pa.binary(), False),
    ("routing_key", pa.binary(), True),
    ("body", pa.binary(), False),
)
SCHEMA = pa.schema(
    [pa.field(name, kind, nullable) for name, kind, nullable in COLUMNS], metadata=METADATA
)
_ROWS = 13


def _field(octets: bytes | bytearray, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands."""
    vtable = table - struct.unpack_from("<i", octets, table)[0]
    inside: int = struct.unpack_from("<H", octets, vtable + 4 + 2 * number)[0]
    assert inside, f"field {number} has its default value"
    return table + inside


def _follow(octets: bytes | bytearray, at: int) -> int:
    return at + int(struct.unpack_from("<I", octets, at)[0])


def module() -> str:
    """The text of broker/stream/template.py."""
    out = io.BytesIO()
    writer = pa.ipc.new_stream(out, SCHEMA)
    arrays = []
    for _, kind, _ in COLUMNS:
        values: list[object] = [
            b"x" if pa.types.is_binary(kind) else "x" if pa.types.is_string(kind) else 1
        ] * _ROWS
        arrays.append(pa.array(values, kind))
    writer.write_batch(
        pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), custom_metadata={"crc32": UNSUMMED}
    )
    octets = out.getvalue()
    schema_end = 8 + struct.unpack_from("<I", octets, 4)[0]
    schema, message = octets[:schema_end], octets[schema_end:]
    size = struct.unpack_from("<I", message, 4)[0]
    meta = bytearray(message[: 8 + size])
    root = _follow(meta, 8)
    batch = _follow(meta, _field(meta, root, 2))
    slots = {"BODY": _field(meta, root, 3), "LENGTH": _field(meta, batch, 0)}
    for name, number, count in (("NODES", 1, len(COLUMNS)), ("BUFFERS", 2, 0)):
        vector = _follow(meta, _field(meta, batch, number))
        found = struct.unpack_from("<I", meta, vector)[0]
        assert not count or found == count
        slots[name] = vector + 4
        slots[f"{name}_COUNT"] = found
        meta[vector + 4 : vector + 4 + 16 * found] = bytes(16 * found)
    slots["SUM"] = bytes(meta).index(UNSUMMED.encode())
    for name in ("BODY", "LENGTH"):
        struct.pack_into("<q", meta, slots[name], 0)
    for name in ("stream", "epoch", "base"):
        slots[f"SCHEMA_{name.upper()}"] = schema.index(METADATA[f"trellis.{name}"].encode())
    lines = [
        '"""What pyarrow writes for a segment\'s schema and record batches. Made by tools/arrow_template.py: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "import base64",
        "import zlib",
        "from typing import Final",
        "",
        "from mypy_extensions import i64",
        "",
        "#: Where numbers stand in the octets of a record batch, and names in those of the schema.",
    ]
    lines += [f"{name}: Final[i64] = {value}" for name, value in slots.items()]
    lines += ["#: Names of the columns, in their order.", "COLUMNS: Final = ("]
    lines += textwrap.wrap(
        ", ".join(f'"{name}"' for name, _, _ in COLUMNS) + ")",
        130,
        initial_indent="    ",
        subsequent_indent="    ",
    )
    for name, part in (("SCHEMA", schema), ("BATCH", bytes(meta))):
        packed = base64.b64encode(zlib.compress(part, 9)).decode()
        lines += ["", f"{name}: Final = zlib.decompress(base64.b64decode("]
        lines += [f'    "{line}"' for line in textwrap.wrap(packed, 130)]
        lines[-1] += "))"
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(module(), end="")
