"""Options of a query that are numbers or switches; where it begins and ends; and what a checkpoint
remembers.
"""

from __future__ import annotations

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import JournalStream, OffsetRange

EARLIEST, LATEST = "earliest", "latest"


def number(options: dict[str, str], name: str, default: int) -> int:
    """An option that is a whole number, 0 or more. Raises PipelineError."""
    text = options.get(name.lower(), str(default))
    if not text.isdecimal():
        raise PipelineError(f"option {name} is '{text}', and should be a whole number")
    return int(text)


def switch(options: dict[str, str], name: str, default: bool) -> bool:
    """An option that is true or false. Raises PipelineError."""
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option {name} is '{text}', and should be true or false")
    return text == "true"


def starting(text: str, bounds: OffsetRange, name: str) -> int:
    """The first offset to read.

    Raises PipelineError: below retention nothing is passed over in silence.
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
            f"offset {offset} of {name} is below its retention: the first one there is {bounds.first}; "
            "read from startingOffsets=earliest, or keep more"
        )
    if offset > bounds.next:
        raise PipelineError(
            f"startingOffsets={offset} lies behind the end of {name}, which is {bounds.next}"
        )
    return offset


def ending(text: str, bounds: OffsetRange, name: str) -> int:
    """The first offset that is not read any more. Raises PipelineError."""
    if text.lower() == LATEST:
        return bounds.next
    if not text.isdecimal():
        raise PipelineError(
            f"option endingOffsets is '{text}', and should be latest or the first offset that is not read any more"
        )
    offset = int(text)
    if offset > bounds.next:
        raise PipelineError(
            f"endingOffsets={offset} lies behind the end of {name}, which is {bounds.next}"
        )
    return offset


def remembered(start: dict[str, int], stream: JournalStream, bounds: OffsetRange) -> None:
    """Whether a query may go on where its checkpoint says. Raises PipelineError: the rows it has
    read, and those it is about to read, must be those of one history."""
    offset = start["next"]
    if offset > bounds.next or stream.rewritten(offset, start["epoch"]):
        raise PipelineError(
            f"this query has read {stream.name} up to offset {offset}, and rows before that are not there (any more): another "
            "journal, or the machine failed before they were durable; begin with a new checkpoint, or read over HTTP, "
            "which shows durable rows only"
        )
    if offset < bounds.first:
        raise PipelineError(
            f"this query goes on with offset {offset} of {stream.name}, which is below its retention: the first one there "
            f"is {bounds.first}; begin with a new checkpoint, or keep more"
        )
