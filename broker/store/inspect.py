"""Looking into the log of a stopped broker: verify, dump, repair. The commands print what these
yield.

verify    reads all as recovery would, changes nothing, and says what recovery would do
dump      a line for each record
repair    does what recovery would do, then writes damaged files anew, without the damage
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.messages.message import PLAIN, Encoding
from broker.store.codecs import Codecs
from broker.store.contract import (
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
)
from broker.store.disk import DamagedStore, Disk, StoreError
from broker.store.files import (
    CHECKPOINT,
    DATA,
    FOUND,
    SEGMENT,
    FileScan,
    Head,
    LogFile,
    closed,
    complaint,
    parse_name,
    read_head,
    seed_of,
)
from broker.store.findings import QUARANTINED, WRONG, Finding
from broker.store.layout import CLOSED, KINDS
from broker.store.reading import END, Decoder
from broker.store.records import closing
from broker.store.recovery import Recoverer, Replay

#: Further kinds of findings.
FINE: Final = "fine"
REPAIRED: Final = "repaired"

#: Octets that are copied at once.
_COPY: Final = 1 << 20


class AnyCodecs(Codecs):
    """Reads messages without understanding their contents."""

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        return PLAIN


class Checking(Replay):
    """Reads every entry, and refuses those that make no sense."""

    def __init__(self) -> None:
        #: Stream -> the offset behind its last row, as the last entry about it says.
        self.ends: dict[int, int] = {}
        self._decoder = Decoder(AnyCodecs())

    def record(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> None:
        self._check(self._decoder.entry(kind, position, octets, start, end), position)

    def _check(self, entry: StoreEntry, position: i64) -> None:
        if isinstance(entry, MessageSettled) and entry.position >= position:
            raise DamagedStore(f"it settles position {entry.position}, which comes later")
        if isinstance(entry, PubrecReceived) and entry.position >= position:
            raise DamagedStore(f"it steps position {entry.position}, which comes later")
        if isinstance(entry, StreamExtended):
            self.ends[int(entry.stream)] = int(entry.end)
        if isinstance(entry, EntryGroup):
            for one in entry.entries:
                self._check(one, position)
                position += 1


def verify(
    disk: Disk, directory: str, salt: int = 0, checking: Checking | None = None
) -> Iterator[Finding]:
    """A line for each file, and what is wrong with it.

    Changes nothing; `checking` reads along. Raises StoreError.
    """
    yield from _recover(Recoverer(disk, directory, salt, checking or Checking(), changing=False))


def _recover(recoverer: Recoverer) -> Iterator[Finding]:
    """What recovery does, file by file."""
    recoverer.start()
    report = recoverer.report
    told = files = 0
    going = True
    while going:
        going = recoverer.next()
        yield from report.findings[told:]
        told = len(report.findings)
        for file in recoverer.files[files:]:
            yield Finding(
                FINE,
                file.name,
                0,
                0,
                f"{file.records} records up to position {file.last}, {file.size} octets, "
                f"{file.copies} copies of messages, {file.dead} of them settled",
            )
        files = len(recoverer.files)
    for name in report.removed:
        yield Finding(FINE, name, 0, 0, "replaced, or never used: opening the log removes it")


def dump(disk: Disk, directory: str, contents: bool = False) -> Iterator[str]:
    """A line for each record: position, kind, and what it says; with `contents` also the bodies, as
    far as they can be shown.

    Files that a checkpoint has replaced are shown as well. Raises StoreError.
    """
    decoder = Decoder(AnyCodecs())
    for name in _names(disk, directory):
        path = f"{directory}/{name}"
        try:
            file = disk.open(path, False)
            size = int(file.size())
            head = read_head(file.read(0, DATA))
            yield f"-- {name}, {size} octets{'' if head else ', both heads damaged'}"
            if head is None:
                continue
            scan = FileScan(file, DATA, size, seed_of(head.salt), 0)
            reader = scan.reader
            found = True
            while found:
                while scan.advance():
                    if reader.kind == CLOSED:
                        yield f"{reader.position} closed"
                        continue
                    try:
                        entry = decoder.entry(
                            reader.kind, reader.position, reader.octets, reader.start, reader.end
                        )
                        yield f"{reader.position} {KINDS[reader.kind]} {describe(entry, contents)}"
                    except (DamagedStore, ValueError) as error:
                        yield f"-- {error}"
                if reader.stop == END:
                    break
                offset, reason = scan.offset, reader.reason
                found = scan.find() == FOUND
                yield f"-- at {offset}: {reason}; {(scan.offset if found else size) - offset} octets skipped"
        except OSError as error:
            raise StoreError(complaint(path, "read", error)) from error


def _names(disk: Disk, directory: str) -> list[str]:
    """The files of the log, checkpoints first."""
    try:
        known = {name: parse_name(name) for name in disk.list(directory)}
    except OSError as error:
        raise StoreError(complaint(directory, "read", error)) from error
    return [
        name
        for kind in (CHECKPOINT, SEGMENT)
        for name, parsed in sorted(known.items())
        if parsed is not None and parsed[0] == kind
    ]


def describe(entry: StoreEntry, contents: bool = False) -> str:
    """One line, without its kind."""
    if isinstance(entry, MessageStored):
        message = entry.message
        body = f" content={message.content[:200]!r}" if contents else ""
        return (
            f"vhost={entry.vhost} exchange={message.address.exchange!r} key={message.address.key!r} queues={entry.queues} "
            f"assurance={message.qos} expires={message.expires} octets={len(message.content)}{body}"
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
        return f"vhost={entry.vhost} key={entry.key!r} {'forgotten' if entry.message is None else f'octets={len(entry.message.content)}'}"
    if isinstance(entry, StreamExtended):
        return f"stream={entry.stream} end={entry.end}"
    if isinstance(entry, Sequenced):
        return f"vhost={entry.vhost} producer={entry.producer!r} {'forgotten' if entry.sequence < 0 else f'sequence={entry.sequence}'}"
    assert isinstance(entry, EntryGroup)
    return f"{len(entry.entries)}: " + "; ".join(
        f"{type(one).__name__.lower()} {describe(one, contents)}" for one in entry.entries
    )


def repair(
    disk: Disk, directory: str, salt: int = 0, checking: Checking | None = None
) -> Iterator[Finding]:
    """Cut the tail, put damage aside, and write damaged files anew: after that `verify` finds
    nothing. Raises StoreError.
    """
    recoverer = Recoverer(disk, directory, salt, checking or Checking())
    yield from _recover(recoverer)
    damaged = {finding.file for finding in recoverer.report.found(QUARANTINED)}
    last: i64 = 0
    for file in recoverer.files:
        if not file.saved:
            yield Finding(
                WRONG, file.name, 0, 0, "left as it is, for its damage could not be copied aside"
            )
        elif file.name in damaged or (not file.closed if file.checkpoint else file.after != last):
            try:
                _rewrite(disk, directory, file, recoverer.salt, last)
            except OSError as error:
                raise StoreError(complaint(file.path, "write anew", error)) from error
            yield Finding(REPAIRED, file.name, 0, 0, "written anew, without the damage")
        if file.checkpoint or file.records or file.closed or not file.saved:
            last = file.last  # Of one in which nothing is left, nobody will know where it ended.


def _rewrite(disk: Disk, directory: str, file: LogFile, salt: i64, after: i64) -> None:
    """The same records behind a whole head, beside it, then under its name."""
    head = (
        Head(CHECKPOINT, salt, file.last, 0)
        if file.checkpoint
        else Head(SEGMENT, salt, file.first, after)
    )
    temporary = file.path + ".tmp"
    source = file.file()
    target = disk.create(temporary)
    octets = head.octets()
    target.write(0, octets)
    size = len(octets)
    for start, end in file.ranges():
        while start < end:
            octets = source.read(start, min(_COPY, end - start))
            if not octets:
                break
            target.write(size, octets)
            size += len(octets)
            start += len(octets)
    if file.checkpoint and not closed(source, int(source.size()), file.seed):
        target.write(size, closing(file.last, file.records, size - DATA, file.salt, file.seed))
    target.sync()
    disk.rename(temporary, file.path)
    disk.sync_directory(directory)
    file.close_scan()
