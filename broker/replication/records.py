"""The records of the replicated log, and their encoding.

    kind     written by      content
    claim    standby, owner  a request to own the log from this record on: the last offset that its
                             writer has read, the state of the log up to there, and a digest of
                             settings (an owner claims for a successor, or again for itself)
    batch    owner           one chunk of the entries of a batch
    beat     owner           nothing: the record says that the owner is there
    mark     owner           the state: a reader may begin at this record
    call     any node        nothing: a node appends it to test if the log commits records

Each record begins with epoch and nonce. An epoch is the time between two claims in force. The nonce
is a random number that tells two claims of the same epoch apart. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from broker.replication.errors import ReplicationError

#: The first bytes of every record. A topic that holds other records belongs to another program.
MAGIC: Final = b"TRLC"
#: The version of the format of the records.
VERSION: Final = 1

CLAIM: Final = 1
BATCH: Final = 2
BEAT: Final = 3
MARK: Final = 4
CALL: Final = 5
KINDS: Final = {CLAIM: "claim", BATCH: "batch", BEAT: "beat", MARK: "mark", CALL: "call"}

#: Header of each record: magic number, version, kind, epoch, nonce, the writer's wall clock in ms
#: of Unix time.
_HEAD: Final = struct.Struct(">4sBBIQq")
#: Fields of a ClusterState: epoch, nonce, last, salt, format, position, number, batch offset, wall
#: clock, lengths of the name and of the owner's description.
_STATE: Final = struct.Struct(">IQqIHqqqqHH")
#: Fields of a Claim: `seen`, digest of the settings, length of the state.
_CLAIM: Final = struct.Struct(">q32sH")
#: Fields of a BatchChunk: number, chunk, chunks, position before, offset of the batch before,
#: position after.
_BATCH: Final = struct.Struct(">qIIqqq")

#: Size in bytes of a batch record without its payload.
BATCH_OVERHEAD: Final = _HEAD.size + _BATCH.size
#: Advice for a node whose data directory cannot follow the log.
REMEDY: Final = (
    "replace the data directory of this node by a copy of another node's directory, which "
    "`trellis cluster seed` makes"
)
#: Size in bytes of the digest of settings.
DIGEST_SIZE: Final = 32


class ForeignRecord(ReplicationError):
    """Raised if another program, or a newer version of Trellis, wrote a record of the log."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of the log after a record: the owner of the log, and the last batch.

    To judge the later records, a reader needs only this state.
    """

    #: Name of the broker, the same on all its nodes.
    name: str
    #: Epoch and nonce of the claim in force; 0 before the first claim.
    epoch: int = 0
    nonce: int = 0
    #: Offset of the last valid record; -1 before the first valid record.
    last: int = -1
    #: Salt of the segment log, given by the first claim; format of batches in force (formats.py).
    salt: int = 0
    format: int = 0
    #: Position of the last entry of the last whole batch.
    position: int = 0
    #: Number of the last whole batch, and offset of its first chunk; 0 and -1 before the first
    #: batch.
    number: int = 0
    batch_offset: int = -1
    #: The highest wall clock of the valid records, in ms of Unix time.
    wall: int = 0
    #: Description of the node that owns the log, as its claim gives it; "" before the first claim.
    owner: str = ""

    # Each record makes a new state. `after_record` and `after_batch` name all fields, because
    # replace() is slower.

    def after_record(self, last: int, wall: int) -> ClusterState:
        """Return the state after a valid record; `last` is the offset of the record, `wall` its
        wall clock in ms.
        """
        return ClusterState(
            self.name,
            self.epoch,
            self.nonce,
            last,
            self.salt,
            self.format,
            self.position,
            self.number,
            self.batch_offset,
            max(self.wall, wall),
            self.owner,
        )

    def after_batch(self, number: int, position: int, batch_offset: int) -> ClusterState:
        """Return the state after the batch with this number.

        `position` is the position of the last entry of the batch, `batch_offset` is the offset of
        its first chunk.
        """
        return ClusterState(
            self.name,
            self.epoch,
            self.nonce,
            self.last,
            self.salt,
            self.format,
            position,
            number,
            batch_offset,
            self.wall,
            self.owner,
        )

    def follows(self, other: ClusterState) -> bool:
        """True if both states have the same broker name, and the same last batch."""
        return (self.name, self.number, self.position, self.batch_offset) == (
            other.name,
            other.number,
            other.position,
            other.batch_offset,
        )

    def encode(self) -> bytes:
        """Return the state as bytes."""
        name, owner = self.name.encode(), self.owner.encode()
        return (
            _STATE.pack(
                self.epoch,
                self.nonce,
                self.last,
                self.salt,
                self.format,
                self.position,
                self.number,
                self.batch_offset,
                self.wall,
                len(name),
                len(owner),
            )
            + name
            + owner
        )

    @staticmethod
    def decode(data: bytes) -> ClusterState:
        """Return the state in these bytes. Raises ForeignRecord if they are malformed."""
        try:
            *numbers, name_size, owner_size = _STATE.unpack_from(data)
            middle = _STATE.size + name_size
            name, owner = data[_STATE.size : middle].decode(), data[middle:].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise ForeignRecord(f"the state of the cluster is malformed: {error}") from error
        if len(data) != middle + owner_size:
            raise ForeignRecord(
                f"the state of the cluster has {len(data)} bytes instead of {middle + owner_size}"
            )
        return ClusterState(name, *(*numbers, owner))


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the replicated log: its kind and its writer.

    The records of the kinds `beat` and `call` have no content, and are instances of this class. For
    the other kinds, a subclass adds the content.
    """

    kind: int
    epoch: int
    nonce: int
    #: The writer's wall clock in ms of Unix time.
    wall: int

    def encode(self) -> bytes:
        """Return the record as bytes."""
        return (
            _HEAD.pack(MAGIC, VERSION, self.kind, self.epoch, self.nonce, self.wall) + self._body()
        )

    def _body(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class Claim(LogRecord):
    """A request to own the log from this record on."""

    #: The last offset that the writer had read when it decided to claim.
    seen: int
    #: The state as the writer knew it then; its salt and format are the salt and format of the
    #: segment log, and its owner is the description of the writer.
    state: ClusterState
    #: SHA-256 of the settings that must be the same on all nodes.
    digest: bytes

    def _body(self) -> bytes:
        state = self.state.encode()
        return _CLAIM.pack(self.seen, self.digest, len(state)) + state


@dataclass(frozen=True, slots=True)
class BatchChunk(LogRecord):
    """One chunk of a batch.

    The chunks of a batch differ only in `chunk`, the index of the chunk, and in `payload`.
    """

    #: Number of the batch: the number of the batch before it + 1.
    number: int
    #: Index of this chunk, and number of chunks.
    chunk: int
    chunks: int
    #: Position of the last entry before this batch, and offset of the previous batch's first chunk.
    position_before: int
    offset_before: int
    #: Position of the last entry of the batch.
    position: int
    payload: bytes

    def _body(self) -> bytes:
        return (
            _BATCH.pack(
                self.number,
                self.chunk,
                self.chunks,
                self.position_before,
                self.offset_before,
                self.position,
            )
            + self.payload
        )


@dataclass(frozen=True, slots=True)
class Mark(LogRecord):
    """A beat that also has the state of the log before it. A reader may begin at this record."""

    state: ClusterState

    def _body(self) -> bytes:
        return self.state.encode()


def decode(data: bytes) -> LogRecord:
    """Return the record in these bytes.

    Raises ForeignRecord if the bytes are malformed, or if another program or a newer version wrote
    them.
    """
    try:
        magic, version, kind, epoch, nonce, wall = _HEAD.unpack_from(data)
    except struct.error:
        raise ForeignRecord(
            f"the record has {len(data)} bytes, fewer than its header of {_HEAD.size} bytes"
        ) from None
    if magic != MAGIC:
        raise ForeignRecord(
            f"the record begins with {data[:4]!r} instead of {MAGIC!r}, so another program wrote it"
        )
    if version > VERSION:
        raise ForeignRecord(
            f"the record has format {version}, and this broker knows formats up to {VERSION}: "
            "upgrade this node"
        )
    body = data[_HEAD.size :]
    if kind in (BEAT, CALL):
        if body:
            raise ForeignRecord(
                f"the record of kind '{KINDS[kind]}' has {len(body)} bytes too many"
            )
        return LogRecord(kind, epoch, nonce, wall)
    try:
        return _decode_body(kind, epoch, nonce, wall, body)
    except struct.error as error:
        raise ForeignRecord(
            f"the record of kind '{KINDS[kind]}' is too short: it is damaged, or another program "
            f"wrote it ({error})"
        ) from error


def _decode_body(kind: int, epoch: int, nonce: int, wall: int, body: bytes) -> LogRecord:
    if kind == CLAIM:
        seen, digest, size = _CLAIM.unpack_from(body)
        state = body[_CLAIM.size :]
        if len(state) != size:
            raise ForeignRecord(f"the claim's state has {len(state)} bytes instead of {size}")
        return Claim(kind, epoch, nonce, wall, seen, ClusterState.decode(state), digest)
    if kind == BATCH:
        number, at, chunks, before, offset_before, position = _BATCH.unpack_from(body)
        if at >= chunks:
            raise ForeignRecord(
                f"the record has chunk number {at}, but the number of chunks in its batch is "
                f"{chunks}"
            )
        payload = body[_BATCH.size :]
        return BatchChunk(
            kind, epoch, nonce, wall, number, at, chunks, before, offset_before, position, payload
        )
    if kind == MARK:
        return Mark(kind, epoch, nonce, wall, ClusterState.decode(body))
    raise ForeignRecord(f"the record has the unknown kind {kind}")
