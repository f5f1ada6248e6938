"""Finds the user and the password for the broker in options, a file or the environment. A password
in a URL is refused.

A password in a URL would be visible: a list of processes shows the arguments of commands, and
Spark's plans, web interface and event log show paths. The first of these sources that has a
password is used:

    option password, option passwordFile          Spark redacts the option `password` in its logs
    TRELLIS_PASSWORD, TRELLIS_PASSWORD_FILE       environment of the driver
    "guest" for the user guest

The user is the first of these that is set: the option `user`, the user in the URL, TRELLIS_USER;
otherwise guest. A password file has the password in its first line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote

from pyspark_trellis.errors import PipelineError, shown

#: The options for credentials, in their usual spelling.
OPTIONS: Final = ("user", "password", "passwordFile")
_ADVICE: Final = (
    "set the options user and passwordFile (or password), or the environment variables "
    "TRELLIS_USER and TRELLIS_PASSWORD_FILE (or TRELLIS_PASSWORD)"
)


def credentials_of(parts: SplitResult, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the user and the password for a URL. The names of options are in lowercase.

    Raises PipelineError for a URL with a password, and if no password is known.
    """
    if parts.password is not None:
        raise PipelineError(
            f"the URL of {shown(parts.geturl())} contains a password, which lists of processes and "
            f"Spark's logs would show: leave it out, and {_ADVICE}"
        )
    user = (
        options.get("user")
        or unquote(parts.username or "")
        or os.environ.get("TRELLIS_USER")
        or "guest"
    )
    password = (
        options.get("password")
        or _first_line(options.get("passwordfile", ""))
        or os.environ.get("TRELLIS_PASSWORD")
        or _first_line(os.environ.get("TRELLIS_PASSWORD_FILE", ""))
        or ("guest" if user == "guest" else "")
    )
    if not password:
        raise PipelineError(f"no password for user '{user}' is known: {_ADVICE}")
    return user, password


def _first_line(file: str) -> str:
    """Return the first line of a file; "" if `file` is "". Raises PipelineError."""
    if not file:
        return ""
    try:
        with Path(file).expanduser().open(encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PipelineError(f"cannot read the password in {file}: {reason}") from None
