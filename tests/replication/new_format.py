"""A batch format of a later version of Trellis, for tests of rolling upgrades.

A batch format is the encoding of batches in the replicated log (broker/replication/formats.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from broker.replication import payload
from broker.replication.formats import BatchFormat, Formats
from broker.replication.payload import Change, Payload
from broker.store.stream_contract import ShippedRows, StreamGarbage

#: The added section: its kind, and its content.
_KIND = 200
_SECTION = struct.pack(">BQ", _KIND, 5) + b"added"


class NewFormat(BatchFormat):
    """The batch format after the present one: it adds a section to each batch."""

    def __init__(self) -> None:
        super().__init__(payload.FORMAT + 1)

    def encode(
        self,
        changes: list[Change],
        parts: list[bytes],
        rows: Sequence[ShippedRows] = (),
        garbage: Sequence[StreamGarbage] = (),
    ) -> bytes:
        content = payload.encode(changes, parts, rows, garbage)
        return bytes([self.number]) + _SECTION + content[1:]

    def decode(self, data: bytes) -> Payload:
        assert data[1 : 1 + len(_SECTION)] == _SECTION
        return payload.decode(bytes([payload.FORMAT]) + data[1 + len(_SECTION) :])


#: The formats of the present version, of the next one, and of one without the first format.
PRESENT = Formats(BatchFormat())
NEXT = Formats(BatchFormat(), NewFormat())
LATER = Formats(NewFormat())
