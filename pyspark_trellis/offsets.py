"""The positions of a query in its journals: its first and last offsets, and its checkpoint.

The offset JSON of a streaming query, in its checkpoint and in its progress, is a position:

    {"next": 120, "epoch": 3, "journal": "orders"}           a query of one journal
    {"orders": {"next": 120, "epoch": 3}, "eu/orders": ...}  a query of several journals

`next` is the offset after the last row that the query has read, and `epoch` the epoch of that row.
`from` is the offset at which the batch that ends at the position begins. `from` is left out if the
batch begins at `next` of the position before. `from` is present, for example, if the query skipped
rows (failOnDataLoss=false), or if the journal is new in the query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from pyspark_trellis.errors import PipelineError, lost_rows
from pyspark_trellis.journal import JournalStream, OffsetRange

EARLIEST, LATEST = "earliest", "latest"
#: The numbers that mean `earliest` and `latest` in the JSON of Spark's Kafka source.
_KAFKA_WORDS = {-2: EARLIEST, -1: LATEST}


class Position(NamedTuple):
    """The end of a batch in one journal: the next offset to read, and the last row's epoch.

    `begin` is the offset at which the batch began; None if it began at the end of the batch before.
    """

    next: int
    epoch: int
    begin: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the position as JSON."""
        fields = {"next": self.next, "epoch": self.epoch}
        return fields if self.begin is None else fields | {"from": self.begin}


def positions_of(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Position]:
    """Return the position in each journal, from an offset JSON. `names` are the query's journals.

    Raises PipelineError if the JSON is of a query of one journal without a name, and the query has
    several journals now.
    """
    if isinstance(document.get("next"), int):
        known = list(names)
        name = document.get("journal")
        if name is None or len(known) == 1:
            if len(known) != 1:
                raise PipelineError(
                    "the checkpoint has an offset without the name of its journal, but the query "
                    f"now reads {', '.join(known) or 'no journal'}: start with a new checkpoint"
                )
            name = known[0]
        return {name: _position(document)}
    return {name: _position(each) for name, each in document.items()}


def _position(document: Mapping[str, Any]) -> Position:
    return Position(document["next"], document["epoch"], document.get("from"))


def document_of(positions: Mapping[str, Position], single: bool) -> dict[str, Any]:
    """Return the offset JSON of these positions; `single` is True for a query of one journal."""
    if single:
        [(name, position)] = positions.items()
        return position.document() | {"journal": name}
    return {name: position.document() for name, position in sorted(positions.items())}


def number(options: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    """Return the option `name`, a whole number of `least` or more; `default` if it is absent.

    Raises PipelineError if the option has another value.
    """
    text = options.get(name.lower(), str(default))
    if not text.isdecimal() or int(text) < least:
        raise PipelineError(
            f"option {name} is '{text}', but must be a whole number, at least {least}"
        )
    return int(text)


def switch(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return the option `name`, true or false; `default` if the option is absent.

    Raises PipelineError if the option has another value.
    """
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option {name} is '{text}', but must be true or false")
    return text == "true"


def by_journal(text: str, option: str, names: Iterable[str]) -> dict[str, str]:
    """Return the text of an option for each journal.

    `text` is one text for all journals, or JSON with an entry for each journal, such as the offset
    JSON of a query. Raises PipelineError if a journal has no entry, or
    if an entry names another journal.
    """
    known = list(names)
    if not text.lstrip().startswith("{"):
        return dict.fromkeys(known, text)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"option {option} is '{text}', which is not JSON: {error}") from None
    if "next" in document and not isinstance(document["next"], dict):
        document = {document.get("journal", known[0] if len(known) == 1 else ""): document}
    texts = {}
    for name, value in document.items():
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0)
            raise PipelineError(
                f"option {option} names journal '{name}', which the query does not read"
                + (f"; the nearest is '{near[0]}'" if near else "")
            )
        if isinstance(value, dict):
            value = value.get("next")
        texts[name] = str(_KAFKA_WORDS.get(value, value) if isinstance(value, int) else value)
    for name in known:
        if name not in texts:
            raise PipelineError(
                f"option {option} has no entry for journal '{name}': add an entry for each of "
                f"{', '.join(known)}"
            )
    return texts


def starting(text: str, bounds: OffsetRange, name: str, whole: bool = True) -> int:
    """Return the first offset to read, from the text of an option: earliest, latest or an offset.

    `name` is the journal's name for errors. Raises PipelineError if `text` is invalid, and if
    retention has removed the offset, so that no row is skipped silently. If `whole` is false,
    return the first offset after the removed rows instead.
    """
    word = text.lower()
    if word in (EARLIEST, LATEST):
        return bounds.first if word == EARLIEST else bounds.next
    if not text.isdecimal():
        raise PipelineError(
            f"option startingOffsets is '{text}', but must be earliest, latest or an offset"
        )
    offset = int(text)
    if offset < bounds.first:
        if not whole:
            return bounds.first
        raise lost_rows(
            f"retention removed offset {offset} of {name}: the first remaining offset is "
            f"{bounds.first}; read from startingOffsets=earliest, or increase retention"
        )
    if offset > bounds.next:
        raise PipelineError(
            f"startingOffsets={offset} is after the end of {name}: set an offset up to "
            f"{bounds.next}"
        )
    return offset


def ending(text: str, bounds: OffsetRange, name: str) -> int:
    """Return the offset after the last offset to read, from the text of an option: latest or an
    offset.

    Raises PipelineError.
    """
    if text.lower() == LATEST:
        return bounds.next
    if not text.isdecimal():
        raise PipelineError(
            f"option endingOffsets is '{text}', but must be latest, or the offset after the last "
            "row to read"
        )
    offset = int(text)
    if offset > bounds.next:
        raise PipelineError(
            f"endingOffsets={offset} is after the end of {name}: set an offset up to {bounds.next}"
        )
    return offset


def micros_of(text: str, option: str) -> int:
    """Parse a time, and return it in microseconds since 1970.

    `text` is a time in ISO 8601, or a number of milliseconds since 1970. Raises PipelineError for
    any other text.
    """
    if text.isdecimal():
        return int(text) * 1_000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"option {option} is '{text}', but must be a time like 2026-03-01T12:00:00Z, or "
            "milliseconds since 1970"
        ) from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def first_offsets(
    options: Mapping[str, str], streams: Mapping[str, JournalStream]
) -> dict[str, int]:
    """Return the offset at which a query begins in each journal. Raises PipelineError."""
    whole = switch(options, "failOnDataLoss", True)
    offsets = _by_time(options, "starting", streams)
    if offsets is None:
        texts = by_journal(
            options.get("startingoffsets", EARLIEST), "startingOffsets", list(streams)
        )
        offsets = {
            name: starting(texts[name], stream.bounds(), stream.name, whole)
            for name, stream in streams.items()
        }
    return offsets


def last_offsets(
    options: Mapping[str, str], streams: Mapping[str, JournalStream]
) -> dict[str, int]:
    """Return the offset before which a batch query ends in each journal. Raises PipelineError."""
    offsets = _by_time(options, "ending", streams)
    if offsets is None:
        texts = by_journal(options.get("endingoffsets", LATEST), "endingOffsets", list(streams))
        offsets = {
            name: ending(texts[name], stream.bounds(), stream.name)
            for name, stream in streams.items()
        }
    return offsets


def _by_time(
    options: Mapping[str, str], which: str, streams: Mapping[str, JournalStream]
) -> dict[str, int] | None:
    """Return the offset of the first row from a time on, for each journal.

    `which` is "starting" or "ending": the option startingTimestamp or endingTimestamp has the time.
    Return None if the option is absent. Raises PipelineError.
    """
    option = f"{which}Timestamp"
    text = options.get(option.lower())
    if text is None:
        return None
    if f"{which}offsets" in options:
        raise PipelineError(
            f"the options {which}Offsets and {option} are both set: set only one of them"
        )
    texts = by_journal(text, option, list(streams))
    return {
        name: stream.offset_at(micros_of(texts[name], option)) for name, stream in streams.items()
    }


def resumed(start: Position, stream: JournalStream, bounds: OffsetRange, whole: bool) -> int:
    """Return the offset at which a query continues after it has read up to the position `start`.

    Raises PipelineError if the query has read rows that are no longer in the stream, because the
    stream is shorter or was rewritten, or if retention has removed rows that the query has not read
    yet. If `whole` is false, these cases are no errors: the result is the offset of the first
    remaining row that the query has not read.
    """
    offset = start.next
    rewritten = stream.rewritten(offset, start.epoch)
    if offset > bounds.next or rewritten is not None:
        if not whole:
            return min(offset, bounds.next) if rewritten is None else rewritten
        raise lost_rows(
            f"this query has read {stream.name} up to offset {offset}, but the journal no longer "
            "has these rows: the path now names another journal, or the machine failed before the "
            "rows were durable; start with a new checkpoint, or read over HTTP, which returns "
            "durable rows only"
        )
    if offset < bounds.first:
        if not whole:
            return bounds.first
        raise lost_rows(
            f"this query continues at offset {offset} of {stream.name}, which retention removed: "
            f"the first remaining offset is {bounds.first}; start with a new checkpoint, or "
            "increase retention"
        )
    return offset
