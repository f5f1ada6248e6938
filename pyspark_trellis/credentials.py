"""Finds the user and the password for the broker in options, a file or the environment. A password
in a URL is refused.

A password in a URL would be visible: a list of processes shows the arguments of commands, and
Spark's plans, web interface and event log show paths. The first of these sources that has a
password is used:

    option token, option tokenFile                a JSON Web Token
    option password, option passwordFile          Spark redacts the option `password` in its logs
    TRELLIS_PASSWORD, TRELLIS_PASSWORD_FILE       environment of the driver
    "guest" for the user guest

The user is the first of these that is set: the option `user`, the user in the URL, TRELLIS_USER.
If none is set, the user is guest. A password file has the password in its first line.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote

from pyspark_trellis.errors import PipelineError, redacted

_ADVICE: Final = (
    "set the options user and passwordFile (or password), or the environment variables "
    "TRELLIS_USER and TRELLIS_PASSWORD_FILE (or TRELLIS_PASSWORD)"
)


def credentials_of(parts: SplitResult, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the user and the password for a URL. The names of options are in lowercase.

    If a token is set, it is returned as the password: a broker that accepts tokens accepts a token
    with any user name. Raises PipelineError for a URL with a password, and if no password is known.
    """
    if parts.password is not None:
        raise PipelineError(
            f"the URL of the broker, {redacted(parts.geturl())}, contains a password, which lists "
            "of processes and Spark's logs would show: remove the password from the URL, and "
            f"{_ADVICE}"
        )
    user = (
        options.get("user")
        or unquote(parts.username or "")
        or os.environ.get("TRELLIS_USER")
        or "guest"
    )
    password = (
        token_of(options)
        or options.get("password")
        or first_line(options.get("passwordfile", ""), "password", "option passwordFile")
        or os.environ.get("TRELLIS_PASSWORD")
        or first_line(
            os.environ.get("TRELLIS_PASSWORD_FILE", ""), "password", "TRELLIS_PASSWORD_FILE"
        )
        or ("guest" if user == "guest" else "")
    )
    if not password:
        raise PipelineError(f"no password for user '{user}' is set: {_ADVICE}")
    return user, password


def first_line(file: str, content: str, origin: str) -> str:
    """Return the first line of a file, without its end; "" if `file` is "".

    Raises PipelineError if the file cannot be read. In the error's text, `content` names the
    file's content, and `origin` the option or environment variable that names the file.
    """
    if not file:
        return ""
    try:
        with Path(file).expanduser().open(encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PipelineError(f"{origin}: cannot read the {content} in {file}: {reason}") from None


def token_of(options: Mapping[str, str]) -> str:
    """Return the JSON Web Token that the options name; "" if they name none.

    Raises PipelineError.
    """
    return options.get("token") or first_line(
        options.get("tokenfile", ""), "token", "option tokenFile"
    )


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Return the settings for TLS connections, which check the server's certificate and name.

    The certificates of the authorities are in `ca_file`; if it is "", the system's authorities are
    trusted. Raises PipelineError.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise PipelineError(
            f"option caFile: cannot read certificates in {ca_file}: {error.strerror or error}"
        ) from None
