"""Parses the options of a query (numbers, switches, start and end), and checks checkpoints."""

from __future__ import annotations

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import JournalStream, OffsetRange

EARLIEST, LATEST = "earliest", "latest"


def number(options: dict[str, str], name: str, default: int) -> int:
    """Return the option `name`, a whole number of 0 or more; `default` if the option is absent.

    Raises PipelineError if the option has another value.
    """
    text = options.get(name.lower(), str(default))
    if not text.isdecimal():
        raise PipelineError(f"option {name} is '{text}', not a whole number of 0 or more")
    return int(text)


def switch(options: dict[str, str], name: str, default: bool) -> bool:
    """Return the option `name`, true or false; `default` if the option is absent.

    Raises PipelineError if the option has another value.
    """
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option {name} is '{text}', and should be true or false")
    return text == "true"


def starting(text: str, bounds: OffsetRange, name: str) -> int:
    """Return the first offset to read, from the text of an option: earliest, latest or an offset.

    Raises PipelineError if `text` is invalid, and if retention has removed the offset, so that no
    row is skipped silently.
    """
    word = text.lower()
    if word in (EARLIEST, LATEST):
        return bounds.first if word == EARLIEST else bounds.next
    if not text.isdecimal():
        raise PipelineError(
            f"option startingOffsets is '{text}', and should be earliest, latest or an offset"
        )
    offset = int(text)
    if offset < bounds.first:
        raise PipelineError(
            f"offset {offset} of {name} was removed by retention: the first offset there is "
            f"{bounds.first}; "
            "read from startingOffsets=earliest, or increase retention"
        )
    if offset > bounds.next:
        raise PipelineError(
            f"startingOffsets={offset} is after the end of {name}, which is {bounds.next}"
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
            f"option endingOffsets is '{text}', and should be latest or the offset after the last "
            "one to read"
        )
    offset = int(text)
    if offset > bounds.next:
        raise PipelineError(
            f"endingOffsets={offset} is after the end of {name}, which is {bounds.next}"
        )
    return offset


def remembered(start: dict[str, int], stream: JournalStream, bounds: OffsetRange) -> None:
    """Check that a query can continue at `start`, the position in its checkpoint.

    Raises PipelineError in two cases: the query has read rows that are no longer in the stream,
    because the stream is shorter or was rewritten; or retention has removed rows that the query has
    not read yet.
    """
    offset = start["next"]
    if offset > bounds.next or stream.rewritten(offset, start["epoch"]):
        raise PipelineError(
            f"this query has read {stream.name} up to offset {offset}, but the rows that it read "
            "are not there (any more): the query now reads another journal, or the machine failed "
            "before the rows were durable; start with a new checkpoint, or read over HTTP, which "
            "returns durable rows only"
        )
    if offset < bounds.first:
        raise PipelineError(
            f"this query continues at offset {offset} of {stream.name}, which retention removed: "
            "the first offset there "
            f"is {bounds.first}; start with a new checkpoint, or increase retention"
        )
