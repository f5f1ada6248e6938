"""What a user can mend."""

from __future__ import annotations

import re
from typing import Final

#: How a line of ours begins where Spark has wrapped it.
_OURS: Final = re.compile(r"(?:pyspark_trellis\.errors\.)?PipelineError: ([^\n]+)")
#: What a line of Java's begins with.
_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")


class PipelineError(Exception):
    """One line: what is wrong, with what, and what to do. Ends a command with exit code 2. (No
    ValueError, so that who looks out for those does not catch it.)"""


def line_of(error: BaseException) -> str | None:
    """The line of a PipelineError inside what Spark raised, or None if there is none. Spark runs
    sources in processes of their own and gives back a text."""
    if isinstance(error, PipelineError):
        return str(error)
    found = _OURS.findall(str(error))
    return found[-1].strip() if found else None


def shown(url: str) -> str:
    """A URL for people: without user and password."""
    return re.sub("//[^/]*@", "//", url)


def of_spark(error: BaseException) -> bool:
    """Whether Spark or its JVM raised it."""
    return any(
        kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__
    )


def brief(error: BaseException) -> str:
    """The first line of what Spark says, which is long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return _CLASS.sub("", lines[1].removeprefix(": "))
    return _CLASS.sub("", lines[0].partition(" SQLSTATE")[0]) if lines else type(error).__name__
