"""Verification, dump and repair of the log of a stopped broker, for `trellis store`.

verify    read the log as recovery does, change nothing, and report what recovery would do
dump      return a line for each record
repair    do what recovery does, then rewrite damaged files without the damage
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.messages.message import PLAIN, Encoding
from broker.store.codecs import Codecs
from broker.store.disk import DamagedStore, Disk, StoreError
from broker.store.entries import (
    DeliveryCounted,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
    scope_parts,
)
from broker.store.files import (
    CHECKPOINT,
    DATA_START,
    FOUND,
    SEGMENT,
    FileScan,
    Head,
    LogFile,
    is_closed,
    os_error_text,
    parse_name,
    read_head,
    seed_of,
)
from broker.store.findings import QUARANTINED, WRONG, Finding
from broker.store.layout import CLOSED, KINDS
from broker.store.reading import END, Decoder
from broker.store.record_parts import closing_record, record_kind
from broker.store.recovery import Recoverer
from broker.store.replay import Replay, missing_end

#: Kinds of findings that findings.py does not define.
FINE: Final = "fine"
REPAIRED: Final = "repaired"

#: Number of bytes copied at once.
_COPY: Final = 1 << 20


class OpaqueCodecs(Codecs):
    """Codecs that accept every encoding and do not decode the contents of messages."""

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        return PLAIN


class EntryCheck(Replay):
    """A Replay that decodes every entry, and checks that the entry refers to earlier entries only.

    If an entry is about a message that comes later, DamagedStore is raised.
    """

    def __init__(self) -> None:
        #: Stream -> its end (the offset of its next row) in the last entry about it.
        self.ends: dict[int, int] = {}
        self._decoder = Decoder(OpaqueCodecs())

    def record(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        self._check(self._decoder.entry(kind, position, data, start, end), position)

    def _check(self, entry: StoreEntry, position: i64) -> None:
        if isinstance(entry, MessageSettled) and entry.position >= position:
            raise DamagedStore(
                f"the record settles the message at position {entry.position}, but a record can "
                "settle only an earlier message"
            )
        if isinstance(entry, PubrecReceived) and entry.position >= position:
            raise DamagedStore(
                f"the record is a PUBREC for the message at position {entry.position}, but a "
                "PUBREC must follow its message"
            )
        if isinstance(entry, DeliveryCounted) and entry.position >= position:
            raise DamagedStore(
                f"the record counts deliveries of the message at position {entry.position}, but "
                "such a record must follow its message"
            )
        if isinstance(entry, StreamExtended):
            self.ends[int(entry.stream)] = int(entry.end)
        if isinstance(entry, EntryGroup):
            for member in entry.entries:
                self._check(member, position)
                position += 1


def verify(
    disk: Disk,
    directory: str,
    salt: int = 0,
    check: EntryCheck | None = None,
    log_position: int = 0,
) -> Iterator[Finding]:
    """Yield a finding for each file and for each problem, without changing anything.

    `check` gets all records. `log_position` is the last position of the log when the catalog was
    last written. A log that ends before this position has lost its end. `salt` is used only if no
    file has an intact head. Raises StoreError if the log cannot be read.
    """
    recoverer = Recoverer(disk, directory, salt, check or EntryCheck(), changes_files=False)
    yield from _recover(recoverer)
    missing = missing_end(recoverer.report, log_position)
    if missing is not None:
        yield missing


def _recover(recoverer: Recoverer) -> Iterator[Finding]:
    """Run a recovery, and yield its findings file by file."""
    recoverer.start()
    report = recoverer.report
    yielded = files = 0
    has_more = True
    while has_more:
        has_more = recoverer.next()
        yield from report.findings[yielded:]
        yielded = len(report.findings)
        for file in recoverer.files[files:]:
            yield Finding(
                FINE,
                file.name,
                0,
                0,
                f"records: {file.records}, up to position {file.last}; bytes: {file.size}; "
                f"copies of messages: {file.copies}, settled: {file.settled}",
            )
        files = len(recoverer.files)
    for name in report.removed:
        yield Finding(
            FINE,
            name,
            0,
            0,
            "another file replaced this file, or the broker never used it: the next start of the "
            "broker removes the file",
        )


def dump(disk: Disk, directory: str, contents: bool = False) -> Iterator[str]:
    """Yield a line for each record: position, kind and fields.

    `contents` adds the first 200 bytes of each body. Files that a checkpoint has replaced are
    included. Raises StoreError if the log cannot be read.
    """
    decoder = Decoder(OpaqueCodecs())
    for name in _names(disk, directory):
        path = f"{directory}/{name}"
        try:
            file = disk.open(path, False)
            size = int(file.size())
            head = read_head(file.read(0, DATA_START))
            yield f"-- {name}, {size} bytes{'' if head else ', both headers are damaged'}"
            if head is None:
                continue
            scan = FileScan(file, DATA_START, size, seed_of(head.salt), 0)
            reader = scan.reader
            has_next = True
            while has_next:
                while scan.advance():
                    if reader.kind == CLOSED:
                        yield f"{reader.position} closed"
                        continue
                    try:
                        entry = decoder.entry(
                            reader.kind, reader.position, reader.data, reader.start, reader.end
                        )
                        yield f"{reader.position} {KINDS[reader.kind]} {describe(entry, contents)}"
                    except (DamagedStore, ValueError) as damaged:
                        yield f"-- {damaged}"
                if reader.stop == END:
                    break
                offset, reason = scan.offset, reader.reason
                has_next = scan.find_next_record() == FOUND
                skipped = (scan.offset if has_next else size) - offset
                yield f"-- at {offset}: {reason}; {skipped} bytes skipped"
        except OSError as error:
            raise StoreError(os_error_text(path, "read", error)) from error


def _names(disk: Disk, directory: str) -> list[str]:
    """Return the names of the files of the log, checkpoints first."""
    try:
        known = {name: parse_name(name) for name in disk.list(directory)}
    except OSError as error:
        raise StoreError(os_error_text(directory, "read", error)) from error
    return [
        name
        for kind in (CHECKPOINT, SEGMENT)
        for name, parsed in sorted(known.items())
        if parsed is not None and parsed[0] == kind
    ]


def describe(entry: StoreEntry, contents: bool = False) -> str:
    """Return the fields of an entry in one line, without its kind.

    `contents` adds the first 200 bytes of a message's content.
    """
    if isinstance(entry, MessageStored):
        message = entry.message
        body = f" content={message.content[:200]!r}" if contents else ""
        return (
            f"vhost={entry.vhost} exchange={message.address.exchange!r} "
            f"key={message.address.key!r} queues={entry.queues} "
            f"qos={message.qos} expires={message.expires} bytes={len(message.content)}{body}"
        )
    if isinstance(entry, MessageSettled):
        return f"queue={entry.queue} of={entry.position}"
    if isinstance(entry, PubrecReceived):
        return f"queue={entry.queue} of={entry.position}"
    if isinstance(entry, PacketIdHeld):
        return f"session={entry.session} packet_id={entry.packet_id}"
    if isinstance(entry, PacketIdReleased):
        return f"session={entry.session} packet_id={entry.packet_id}"
    if isinstance(entry, RetainedSet):
        retained = entry.message
        size = "removed" if retained is None else f"bytes={len(retained.content)}"
        return f"vhost={entry.vhost} key={entry.key!r} {size}"
    if isinstance(entry, StreamExtended):
        return f"stream={entry.stream} end={entry.end}"
    if isinstance(entry, DeliveryMark):
        return f"queue={entry.queue} rank={entry.rank} up_to={entry.mark}"
    if isinstance(entry, DeliveryCounted):
        return f"queue={entry.queue} of={entry.position} returns={entry.count}"
    if isinstance(entry, Sequenced):
        sequence = "removed" if entry.sequence < 0 else f"sequence={entry.sequence}"
        vhost, owner = scope_parts(entry.scope)
        user = "" if owner is None else f" user={owner!r}"
        return f"vhost={vhost}{user} producer={entry.producer!r} {sequence}"
    assert isinstance(entry, EntryGroup)
    return f"{len(entry.entries)}: " + "; ".join(
        f"{KINDS[record_kind(member)]} {describe(member, contents)}" for member in entry.entries
    )


def repair(
    disk: Disk, directory: str, salt: int = 0, check: EntryCheck | None = None
) -> Iterator[Finding]:
    """Repair the log, and yield a finding for each problem and each repaired file.

    The repair cuts the torn end of the log, copies damage to the quarantine, and rewrites damaged
    files. After that, `verify` finds no problem. `check` gets all records. `salt` is used only if
    no file has an intact head. Raises StoreError if a file cannot be read or written.
    """
    recoverer = Recoverer(disk, directory, salt, check or EntryCheck())
    yield from _recover(recoverer)
    damaged = {finding.file for finding in recoverer.report.findings_of(QUARANTINED)}
    last: i64 = 0
    for file in recoverer.files:
        if not file.damage_saved:
            yield Finding(
                WRONG,
                file.name,
                0,
                0,
                "not repaired, because the damage could not be copied to the quarantine: free "
                "disk space, and check the permissions of the data directory, then repair again",
            )
        elif file.name in damaged or (
            not file.closed if file.checkpoint else file.previous_last != last
        ):
            try:
                _rewrite_file(disk, directory, file, recoverer.salt, last)
            except OSError as error:
                raise StoreError(os_error_text(file.path, "rewrite", error)) from error
            yield Finding(REPAIRED, file.name, 0, 0, "the file was rewritten without the damage")
        if file.checkpoint or file.records or file.closed or not file.damage_saved:
            last = file.last  # Recovery treats a file without records as empty.


def _rewrite_file(disk: Disk, directory: str, file: LogFile, salt: i64, after: i64) -> None:
    """Replace a file by a copy that has an intact head and only the undamaged records.

    `after` is the last position in the previous file.
    """
    head = (
        Head(CHECKPOINT, salt, file.last, 0)
        if file.checkpoint
        else Head(SEGMENT, salt, file.first, after)
    )
    temporary = file.path + ".tmp"
    source = file.file()
    target = disk.create(temporary)
    data = head.encode()
    target.write(0, data)
    size = len(data)
    for start, end in file.readable_ranges():
        while start < end:
            data = source.read(start, min(_COPY, end - start))
            if not data:
                break
            target.write(size, data)
            size += len(data)
            start += len(data)
    if file.checkpoint and not is_closed(source, int(source.size()), file.seed):
        target.write(
            size, closing_record(file.last, file.records, size - DATA_START, file.salt, file.seed)
        )
    target.sync()
    disk.rename(temporary, file.path)
    disk.sync_directory(directory)
    file.close_scan()
