"""HTTP requests of the commands to a running broker: where it listens, and who logs in."""

from __future__ import annotations

import argparse
import base64
import http.client
import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from trellis.cli.parsing import CommandError, Parser, add_settings, load_settings
from trellis.settings import Listener, Settings
from trellis.settings.loading import read_password

#: Seconds without a byte after which the broker is taken for unresponsive.
TIMEOUT = 10.0
#: Characters of an unexpected answer that an error text repeats.
SHOWN = 1_000
_LOGIN = "give --user and --password, or set TRELLIS_USER and TRELLIS_PASSWORD"


class RequestRefused(msgspec.Struct):
    """The body of an answer that refuses a request."""

    reason: str


class ApiClient:
    """The HTTP API of a running broker, for one user. Its methods raise CommandError."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.settings = load_settings(arguments).settings
        self.base = base_url(arguments.url, "http", self.settings.http)
        self.user, self.password = credentials(arguments, self.settings)

    def request(
        self,
        method: str,
        *path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """Return the body of the answer. `path` is the parts behind `/api/`, unquoted."""
        request = urllib.request.Request(
            self.url(*path) + (f"?{urlencode(query)}" if query else ""),
            data=body,
            method=method,
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        name = f"{self.user}:{self.password}".encode(errors="surrogateescape")
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(name).decode()}")
        try:
            return fetch(request)
        except urllib.error.HTTPError as error:
            raise CommandError(self._problem(error, request.full_url)) from None

    def json(self, method: str, *path: str, body: object = None) -> Any:
        """Return the decoded JSON of the answer, None for an empty body. Sends `body` as JSON."""
        data = None if body is None else msgspec.json.encode(body)
        answer = self.request(method, *path, body=data)
        return self.decode(answer, Any, "JSON", *path) if answer else None

    def decode(self, answer: bytes, kind: Any, expected: str, *path: str) -> Any:
        """Return the JSON of an answer as `kind`, which `expected` describes in an error."""
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise CommandError(
                f"{self.url(*path)} answered no {expected}; is it Trellis?"
            ) from None

    def url(self, *path: str) -> str:
        """Return the URL of a path behind `/api/`."""
        parts = (quote(part, safe="", errors="surrogateescape") for part in path)
        return f"{self.base}/api/{'/'.join(parts)}"

    def _problem(self, error: urllib.error.HTTPError, url: str) -> str:
        text, is_reason = _reason(error)
        if error.code == 401:
            return f"{self.base} refused user {self.user} ({text or error.reason}); {_LOGIN}"
        if not is_reason:
            return f"{url} answered {error.code} {error.reason}" + (f": {text}" if text else "")
        return f"{text}; logged in as {self.user}: {_LOGIN}" if error.code == 403 else text


def add_login(command: Parser) -> None:
    """Add the flags that choose a running broker and the user to log in as, and the settings.

    This user is not the setting `user`, which defines a user of a broker to start.
    """
    command.add_argument(
        "--url",
        help="URL of the broker's HTTP API, such as http://127.0.0.1:15672 "
        "[http port of the settings]",
    )
    command.add_argument(
        "--user",
        dest="login_user",
        metavar="NAME",
        help="user that logs in [user of the settings, else guest]",
    )
    command.add_argument(
        "--password", dest="login_password", metavar="WORD", help="password of that user"
    )
    command.add_argument(
        "--password-file",
        dest="login_password_file",
        metavar="FILE",
        help="file whose first line is the password of that user",
    )
    add_settings(command, "http", without=("user", "password", "password_file"))


def credentials(arguments: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Return user name and password: those of the flags, else of the settings, else of guest."""
    user: str = arguments.login_user or settings.user or "guest"
    password: str | None = arguments.login_password
    if password is None and arguments.login_password_file is not None:
        try:
            password = read_password(arguments.login_password_file)
        except ValueError as error:
            raise CommandError(f"--password-file: {error}", 2) from None
    if password is None:
        password = (
            settings.password if user == settings.user else "guest" if user == "guest" else ""
        )
    if not password:
        raise CommandError(
            f"no password for user {user}; give --password, --password-file or TRELLIS_PASSWORD", 2
        )
    return user, password


def base_url(url: str | None, section: str, listener: Listener) -> str:
    """Return the URL of a broker: `url` if it is given, else that of a listener in the settings."""
    if url is not None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            valid = False
        if not valid or not url.isascii() or not url.isprintable() or " " in url:
            example = f"http://127.0.0.1:{listener.port}"
            raise CommandError(f'--url: must be a URL such as {example}, got "{url}"', 2)
        return url.rstrip("/")
    if not listener.enabled:
        raise CommandError(f"{section}.enabled is false in the settings; give --url", 2)
    if listener.port == 0:
        problem = f"{section}.port is 0 in the settings, a free port chosen at the start"
        raise CommandError(f"{problem}; give --url", 2)
    address = ipaddress.ip_address(listener.addresses[0])
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    host = str(address) if address.version == 4 else f"[{address}]"
    return f"http://{host}:{listener.port}"


def fetch(request: urllib.request.Request) -> bytes:
    """Return the body of a 2xx answer.

    Raises urllib's HTTPError for another answer, and CommandError if there is none.
    """
    # No proxy from the environment: the broker is addressed directly.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    place = f"{request.type}://{request.host}"
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError:
        raise
    except TimeoutError:
        raise CommandError(f"no answer from {place} within {TIMEOUT:g} s") from None
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        text = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:SHOWN]
        raise CommandError(
            f"no answer from {place} ({text}); is the broker running there? Else give --url"
        ) from None


def error_text(error: urllib.error.HTTPError) -> str:
    """Return the text of an answer that is not 2xx, without its status."""
    return _reason(error)[0] or error.reason


def _reason(error: urllib.error.HTTPError) -> tuple[str, bool]:
    """Return the text of an answer, and True if the text is a reason given by the HTTP API."""
    with error:
        body = error.read(SHOWN)
    try:
        return msgspec.json.decode(body, type=RequestRefused).reason, True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace").strip(), False
