"""Defines the error that a user can fix, and makes short texts of errors from Spark."""

from __future__ import annotations

import re
from typing import Final

#: The prefix that marks a PipelineError's line in Spark's wrapping text.
_WRAPPED: Final = re.compile(r"(?:pyspark_trellis\.errors\.)?PipelineError: ([^\n]+)")
#: The beginnings of lines in a Java stack trace.
_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")


class PipelineError(Exception):
    """Raised if an action fails for a reason that the user can remove.

    A command then ends with the exit code `code`. The text is one line, which names the failed
    action, the object, the reason and a remedy. The class is not a subclass of ValueError, so that
    handlers of ValueError do not catch it.
    """

    #: Exit code of a command: 2 for wrong arguments or input, 1 if a broker does not answer, or
    #: refuses the request.
    code = 2
    #: True if rows are missing that a query should read. With failOnDataLoss=false, a query
    #: continues after them.
    rows_lost = False
    #: HTTP status with which a broker refused a request; 0 for all other errors.
    status = 0


def failed_request(text: str, status: int = 0) -> PipelineError:
    """Return a PipelineError about a request that a broker does not answer, or refuses.

    `status` is the HTTP status of the answer; 0 without an answer.
    """
    error = PipelineError(text)
    error.code, error.status = 1, status
    return error


def lost_rows(text: str) -> PipelineError:
    """Return a PipelineError about missing rows: its `rows_lost` is True."""
    error = PipelineError(text)
    error.rows_lost = True
    return error


def line_of(error: BaseException) -> str | None:
    """Return the text of a PipelineError inside an exception of Spark; None if there is none.

    Spark runs sources in separate processes and returns their errors as text.
    """
    if isinstance(error, PipelineError):
        return str(error)
    lines = _WRAPPED.findall(str(error))
    return lines[-1].strip() if lines else None


def redacted(url: str) -> str:
    """Return a URL without user and password."""
    return re.sub("//[^/]*@", "//", url)


def of_spark(error: BaseException) -> bool:
    """True if Spark or its JVM raised the error."""
    return any(
        kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__
    )


def brief(error: BaseException) -> str:
    """Return the first line of Spark's error text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return _CLASS.sub("", lines[1].removeprefix(": "))
    return _CLASS.sub("", lines[0].partition(" SQLSTATE")[0]) if lines else type(error).__name__
