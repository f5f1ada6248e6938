"""HTTP requests of the commands to a running broker: its URL, the login, and errors."""

from __future__ import annotations

import argparse
import base64
import http.client
import ipaddress
import os
import shlex
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from broker.names import shown
from trellis.cli.connection_errors import SHOWN, connection_error
from trellis.cli.missing_objects import advice_about
from trellis.cli.parsing import CommandError, Parser, add_settings, load_settings
from trellis.cli.wrong_port import port_hint
from trellis.settings import Http, Listener, Settings
from trellis.settings.errors import printable
from trellis.settings.loading import read_password

#: Seconds without a received byte after which a request fails.
TIMEOUT = 10.0
#: HTTP statuses of answers that may say that an object does not exist.
_ABOUT_OBJECTS = (400, 404)


class RequestRefused(msgspec.Struct):
    """The JSON body with which the HTTP API refuses a request."""

    reason: str


class _Page(msgspec.Struct):
    """A page of a list of the HTTP API."""

    items: list[dict[str, Any]]


class ApiRefused(CommandError):
    """Raised if the HTTP API refuses a request.

    `status` is the HTTP status, and the text has the reason. `client` sent the request; None if no
    broker was asked.
    """

    def __init__(self, problem: str, status: int, client: ApiClient | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self._client = client

    def advice(self) -> str:
        """Return the nearest name and the next command if an object is missing; else ""."""
        if self._client is None or self.status not in _ABOUT_OBJECTS:
            return ""
        return printable(advice_about(str(self), self._client.list_rows, self._client.sets_user))


class ApiClient:
    """A client of the HTTP API of a running broker, with the credentials of one user.

    Its methods raise CommandError."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.settings = load_settings(arguments).settings
        self.base = api_url(arguments.url, self.settings)
        self.user, self.password = credentials(arguments, self.settings)
        #: True if the command sets a property of a user. If the user does not exist, the error then
        #: also names the command that adds a user.
        self.sets_user: bool = getattr(arguments, "sets_user", False)
        self._advice = "give --user and --password, or set TRELLIS_USER and TRELLIS_PASSWORD"
        self._advice += publisher_hint(arguments)

    def request(
        self,
        method: str,
        *path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        timeout: float = TIMEOUT,
    ) -> bytes:
        """Send a request to `/api/PATH` and return the body of the answer.

        `path` has the parts of PATH, without URL encoding. `query` has the parameters of the URL.
        `body` is the encoded body; None for no body. The request fails after `timeout` seconds
        without a received byte.
        """
        request = urllib.request.Request(
            self.url(*path) + (f"?{urlencode(query, errors='surrogateescape')}" if query else ""),
            data=body,
            method=method,
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        name = f"{self.user}:{self.password}".encode(errors="surrogateescape")
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(name).decode()}")
        try:
            return fetch(request, timeout)
        except urllib.error.HTTPError as error:
            problem = self._problem(error, request.full_url)
            raise ApiRefused(problem, error.code, self) from None

    def json(self, method: str, *path: str, body: object = None) -> Any:
        """Send a request with `body` as JSON, unless `body` is None.

        Return the decoded JSON of the answer; None for an empty answer.
        """
        try:
            data = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError as error:
            wrong = shown(error.object[:SHOWN])
            raise CommandError(
                f"the argument '{wrong}' is not valid UTF-8: write it in UTF-8", 2
            ) from None
        answer = self.request(method, *path, body=data)
        return self.decode(answer, Any, "JSON", *path) if answer else None

    def list_rows(self, path: tuple[str, ...], query: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return the rows of the list at `path`, or of a page of the list if `query` asks for one.

        Return [] if the request fails, or if the answer is no list: the callers need the rows only
        to add the nearest name to an error.
        """
        try:
            body = self.request("GET", *path, query=query)
            rows: _Page | list[dict[str, Any]] = self.decode(
                body, _Page | list[dict[str, Any]], "list", *path
            )
        except CommandError:
            return []
        return rows.items if isinstance(rows, _Page) else rows

    def decode(self, answer: bytes, kind: Any, expected: str, *path: str) -> Any:
        """Decode the JSON of an answer as the type `kind`.

        Raises CommandError if the answer is not such JSON; `expected` describes the type in the
        error.
        """
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise CommandError(
                f"{self.url(*path)} did not answer with the expected {expected}; "
                "check that a Trellis broker listens there, or give another --url"
            ) from None

    def url(self, *path: str) -> str:
        """Return the URL of `/api/PATH`; `path` has the parts of PATH, without URL encoding.

        Raises CommandError if a part is empty, because the URL would then name another object.
        """
        encoded = "/".join(quote(part, safe="", errors="surrogateescape") for part in path)
        if "" in path:
            raise CommandError(
                f"a name in the request /api/{encoded} is empty: give a name that is not empty", 2
            )
        return f"{self.base}/api/{encoded}"

    def _problem(self, error: urllib.error.HTTPError, url: str) -> str:
        text, is_reason = _reason(error)
        if error.code == 401:
            return f"{self.base} refused user {self.user} ({text or error.reason}); {self._advice}"
        if not is_reason:
            status = f"{error.code} {error.reason}".strip()
            problem = f"{url} answered {status}" + (f": {text}" if text else "")
            if error.code == 404:
                return f"{problem}; {port_hint('http')}"
            return f"{problem}; check that a Trellis broker listens there, and read its log"
        return f"{text}; logged in as {self.user}: {self._advice}" if error.code == 403 else text


def add_login(command: Parser, *aliases: str, uses: Collection[str] = ()) -> None:
    """Add --url, the flags for the login, and the flags of the settings that the command uses.

    The flags for the login are --user, --password and --password-file. These flags replace the
    flags of three settings with the same names, which define a user of a broker at its start.
    `aliases` are other names of the flag --user. `uses` has the keys of the settings that the
    command uses besides the address of the HTTP API.
    """
    command.add_argument(
        "--url",
        help="URL of the broker's HTTP API, such as http://127.0.0.1:15672 "
        "[$TRELLIS_URL, else the http port of the settings]",
    )
    command.add_argument(
        "--user",
        *aliases,
        dest="login_user",
        metavar="NAME",
        help="user that logs in [user of the settings, else guest]",
    )
    command.add_argument(
        "--password", dest="login_password", metavar="WORD", help="password for the login"
    )
    command.add_argument(
        "--password-file",
        dest="login_password_file",
        metavar="FILE",
        help="file whose first line is the password for the login",
    )
    user = ("user", "password", "password_file")
    only = (*address_keys("http"), *uses)
    add_settings(command, without=user, only=only)
    # Environment and files may name the user that logs in, which may be the built-in user guest.
    command.set_defaults(used_settings=(*only, *user))


def add_publisher(command: Parser) -> None:
    """Add the flag --publisher, which names a user whose rights a command checks."""
    command.add_argument(
        "--publisher",
        metavar="USER",
        help="also check the rights of this user to publish the message; --user is the user that "
        "logs in",
    )
    command.set_defaults(checks_publisher=True)


def publisher_hint(arguments: argparse.Namespace) -> str:
    """Return what to add to an error about the login of a command with the flag --publisher.

    The operator may have given --user in place of --publisher, to name the user whose rights are
    checked. Return "" for other commands, and for a command line without --user.
    """
    user = arguments.login_user
    if user is None or not getattr(arguments, "checks_publisher", False):
        return ""
    return (
        f"; --user is the user that logs in: to check the rights of {user}, give --publisher "
        f"{shlex.quote(user)}"
    )


def address_keys(section: str) -> tuple[str, ...]:
    """Return the keys of the settings from which a command gets the URL of a section's listener."""
    keys = f"{section}.enabled", f"{section}.host", f"{section}.port"
    return (*keys, "http.tls") if section == "http" else keys


def credentials(arguments: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Return the user name and password for the login.

    The user name and the password come from the flags, else from the settings. If neither the flags
    nor the settings have a user name, both are "guest". A user name in the flags needs a password
    in the flags, unless the settings have a password for this user. Raises CommandError if no
    password is known.
    """
    user: str = arguments.login_user or settings.user or "guest"
    password: str | None = arguments.login_password
    if password is None and arguments.login_password_file is not None:
        try:
            password = read_password(arguments.login_password_file)
        except ValueError as error:
            raise CommandError(f"--password-file: {error}", 2) from None
    if password is None:
        password = settings.password if user == settings.user else ""
        if not password and user == "guest":
            password = "guest"
    if not password:
        raise CommandError(
            f"no password for user {user}; give --password, --password-file or TRELLIS_PASSWORD"
            + publisher_hint(arguments),
            2,
        )
    return user, password


def given_url(url: str | None) -> str | None:
    """Return `url`, the value of --url, else the value of TRELLIS_URL; None if both are missing."""
    return os.environ.get("TRELLIS_URL") or None if url is None else url


def api_url(url: str | None, settings: Settings) -> str:
    """Return the URL of a broker's HTTP API.

    The URL is `url` if it is given, else the value of the environment variable TRELLIS_URL, else
    the URL of the listener in the settings. Raises CommandError as base_url does.
    """
    source = "TRELLIS_URL" if url is None else "--url"
    return base_url(given_url(url), "http", settings.http, source)


def base_url(url: str | None, section: str, listener: Listener, source: str = "--url") -> str:
    """Return the URL of a broker: `url` if it is given, else the URL of a listener's settings.

    `section` names the listener's settings in errors, and `source` is the flag or the environment
    variable that gave `url`. If the listener has TLS (`http.tls`), its URL has the scheme https.
    The host in the listener's URL is an IP address. Most certificates have only host names; with
    such a certificate, the user of the command must give a URL. Raises CommandError if `url` is
    invalid, or the listener is disabled or has port 0.
    """
    if url is not None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            valid = False
        if not valid or not url.isascii() or not url.isprintable() or " " in url:
            example = f"http://127.0.0.1:{listener.port}"
            raise CommandError(f'{source}: must be a URL such as {example}, got "{url}"', 2)
        return url.rstrip("/")
    if not listener.enabled:
        problem = f"{section}.enabled is false in the settings"
        raise CommandError(f"the broker's URL is unknown, because {problem}; give --url", 2)
    if listener.port == 0:
        problem = f"{section}.port is 0 in the settings, and the broker has chosen a free port"
        raise CommandError(f"the broker's URL is unknown, because {problem}; give --url", 2)
    address = ipaddress.ip_address(listener.addresses[0])
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    host = str(address) if address.version == 4 else f"[{address}]"
    scheme = "https" if isinstance(listener, Http) and listener.tls else "http"
    return f"{scheme}://{host}:{listener.port}"


def fetch(
    request: urllib.request.Request, timeout: float = TIMEOUT, section: str = "http"
) -> bytes:
    """Send a request to a listener of the broker, and return the body of the answer.

    `section` is the listener's section of the settings; errors name the listener's port.
    The request fails after `timeout` seconds without a received byte. Raises urllib's HTTPError for
    an answer whose status is not 2xx, and CommandError if there is no answer.
    """
    # No proxy from the environment: the broker is addressed directly.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError:
        raise
    except TimeoutError:
        place = f"{request.type}://{request.host}"
        raise CommandError(
            f"no answer from {place} within {timeout:g} s; check that a Trellis broker listens "
            "there and is not overloaded, and try again"
        ) from None
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        text = connection_error(error, request.type, request.host, section)
        raise CommandError(text) from None


def error_text(error: urllib.error.HTTPError) -> str:
    """Return the reason in the body of an error answer, or its status text if the body is empty."""
    return _reason(error)[0] or error.reason


def _reason(error: urllib.error.HTTPError) -> tuple[str, bool]:
    """Return the text of an error answer, and True if the HTTP API gave the text as the reason.

    With False, the text is the beginning of the body, which may have any format.
    """
    with error:
        body = error.read(SHOWN)
    try:
        return msgspec.json.decode(body, type=RequestRefused).reason, True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace").strip(), False
