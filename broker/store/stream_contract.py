"""The interface between the store and streams: rows to write, and segment files to remove.

On a node of a cluster, the rows of a batch are encoded first, then shipped to the replicated log,
then written: `ShippedRows` names the file, and the byte of the file at which each node writes the
rows.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import Disk


class ShippedRows:
    """Encoded rows of a stream, and where each node writes them.

    `vhost` and `name` are the names of the stream, `stream` is its number. The rows from offset
    `base` on are written at the byte `place` of the segment with the epoch `epoch`, whose first row
    has the offset `segment_base`.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        stream: int,
        epoch: int,
        segment_base: int,
        place: int,
        base: int,
        count: int,
        data: bytes | bytearray,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.stream = stream
        self.epoch = epoch
        self.segment_base = segment_base
        self.place = place
        self.base = base
        self.count = count
        self.data = data


class StreamGarbage:
    """Files of a stream to remove: `segments` has their epochs and base offsets, oldest first.

    If `deleted` is True, the stream is deleted, and its directory is removed too, once it is empty.
    """

    def __init__(
        self, vhost: str, name: str, stream: int, segments: list[tuple[int, int]], deleted: bool
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.stream = stream
        self.segments = segments
        self.deleted = deleted

    def remove(self, disk: Disk, root: str) -> None:
        """Remove these files. `root` is the directory of all streams.

        Files that cannot be removed are skipped: the next start finds them. Raises WriteFailed if
        no file descriptor is free; the call may be repeated.
        """
        raise NotImplementedError

    def remove_own(self, disk: Disk, root: str) -> None:
        """Remove the files, except files that belong to another stream of the same name.

        A node of a cluster may repeat a removal after a crash. By then, a new stream of this name
        may have files in the directory.
        """
        raise NotImplementedError


class StreamWrite:
    """The rows of one stream in a batch."""

    def prepare(self) -> list[ShippedRows]:
        """Encode the rows before they are written, and return them for the replicated log.

        Runs in the writer's thread. Raises WriteFailed if the call can be repeated later.
        """
        raise NotImplementedError

    def write(self) -> None:
        """Make the rows durable. Runs in the writer's thread; may be repeated after WriteFailed."""
        raise NotImplementedError

    def settle(self) -> None:
        """Make the rows visible to readers.

        Called in the event loop's thread once the rows and their StreamExtended entry are durable.
        """
        raise NotImplementedError


class StreamIntake:
    """The rows of a stream that wait for the next batch, as the store sees them."""

    def stream_number(self) -> i64:
        """Return the number of the stream: the position of the entry that declared it."""
        raise NotImplementedError

    def stream_end(self) -> i64:
        """Return the offset of the next row: the last row's offset + 1."""
        raise NotImplementedError

    def pending_bytes(self) -> i64:
        """Return the size of the rows that wait to be written, in bytes."""
        raise NotImplementedError

    def take_write(self) -> StreamWrite:
        """Return the rows that were added since the last call."""
        raise NotImplementedError
