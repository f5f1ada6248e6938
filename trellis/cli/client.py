"""Commands that ask a running broker over HTTP: `trellis health` and `trellis list`."""

import argparse
import base64
import http.client
import ipaddress
import urllib.error
import urllib.request
from urllib.parse import urlencode, urlsplit

import msgspec

from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.cli.table import Row, columns_of, table
from trellis.settings import Listener, Settings
from trellis.settings.errors import nearest
from trellis.settings.loading import read_password

KINDS = ("queues", "exchanges", "bindings", "connections", "sessions", "delayed", "policies")
TIMEOUT = 10.0  # seconds without an octet
SHOWN = 1_000  # characters of what an unexpected answer says


class RequestRefused(msgspec.Struct):
    """What the broker says when it refuses."""

    reason: str


def add(commands: Commands) -> None:
    health_usage = "[--url URL] [--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands, "health", health, "exit with 0 if the broker is ready, else with 1", health_usage
    )
    command.add_argument(
        "--url", help="where to ask, such as http://127.0.0.1:15692 [metrics port of the settings]"
    )
    add_settings(command, "metrics")

    list_usage = "KIND [--columns A,B] [--json] [--url URL] [--user NAME --password WORD]"
    command = add_command(commands, "list", list_objects, "list what the broker holds", list_usage)
    command.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    command.add_argument(
        "--columns", metavar="A,B", help="columns to print, separated by commas [all]"
    )
    command.add_argument("--json", action="store_true", help="print a JSON list of objects")
    command.add_argument(
        "--cancel",
        metavar="VHOST:EXCHANGE:ID",
        help="of the delayed messages: let go of this one, and list the others",
    )
    add_asking(command)
    add_settings(command, "http", without=("user", "password", "password_file"))


def add_asking(command: argparse.ArgumentParser) -> None:
    """Where to ask, and who asks. These are no settings, and do not meet those of a file."""
    command.add_argument(
        "--url", help="where to ask, such as http://127.0.0.1:15672 [http port of the settings]"
    )
    command.add_argument(
        "--user", dest="asking", metavar="NAME", help="who asks [user of the settings, else guest]"
    )
    command.add_argument("--password", dest="secret", metavar="WORD", help="password of that user")
    command.add_argument(
        "--password-file", dest="secret_file", metavar="FILE", help="file that holds it"
    )


def authorised(
    request: urllib.request.Request, arguments: argparse.Namespace, settings: Settings
) -> str:
    """Say who asks; returns the user's name."""
    user, password = credentials(arguments, settings)
    token = base64.b64encode(f"{user}:{password}".encode(errors="surrogateescape")).decode()
    request.add_unredirected_header("Authorization", f"Basic {token}")
    return user


def health(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments).settings
    url = base_of(arguments.url, "metrics", settings.metrics) + "/readyz"
    try:
        fetch(urllib.request.Request(url))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(SHOWN).decode(errors="replace").strip() or error.reason
        raise CommandError(f"not ready: {url} answered {error.code}: {said}") from None
    print(f"ready: {url}")
    return 0


def list_objects(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments).settings
    base = base_of(arguments.url, "http", settings.http)
    if arguments.cancel is not None:
        _cancel(base, arguments, settings)
    request = urllib.request.Request(
        f"{base}/api/trellis/{arguments.kind}", headers={"Accept": "application/json"}
    )
    user = authorised(request, arguments, settings)
    try:
        answer = fetch(request)
    except urllib.error.HTTPError as error:
        error.close()
        refused = f"{base} refused user {user} ({error.code}); give --user and --password, or set TRELLIS_USER"
        other = f"{request.full_url} answered {error.code} {error.reason}"
        raise CommandError(refused if error.code in (401, 403) else other) from None
    try:
        rows = msgspec.json.decode(answer, type=list[Row])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandError(
            f"{request.full_url} answered no JSON list of flat objects; is it Trellis?"
        ) from None
    _print(rows, arguments)
    return 0


def _cancel(base: str, arguments: argparse.Namespace, settings: Settings) -> None:
    """Let go of a delayed message."""
    vhost, _, rest = arguments.cancel.partition(":")
    exchange, colon, order = rest.rpartition(":")
    if arguments.kind != "delayed" or not colon:
        raise CommandError(
            "--cancel goes with delayed, and names VHOST:EXCHANGE:ID, such as /:later:7", 2
        )
    query = urlencode({"vhost": vhost, "exchange": exchange, "id": order})
    request = urllib.request.Request(f"{base}/api/trellis/delayed?{query}", method="DELETE")
    authorised(request, arguments, settings)
    try:
        fetch(request)
    except urllib.error.HTTPError as error:
        raise CommandError(said_by(error)) from None


def _print(rows: list[Row], arguments: argparse.Namespace) -> None:
    known = columns_of(rows)
    columns = (
        [name.strip() for name in arguments.columns.split(",")] if arguments.columns else known
    )
    for name in columns if rows else ():
        if name not in known:
            raise CommandError(
                f"{arguments.kind} have no column {name}; the nearest is {nearest(name, known)}", 2
            )
    chosen = (
        [{name: row.get(name) for name in columns} for row in rows] if arguments.columns else rows
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(chosen)).decode())
    else:
        print(table(chosen, columns) if chosen else f"no {arguments.kind}")


def credentials(arguments: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Who asks: the flags, else the user of the settings, else guest."""
    user: str = arguments.asking or settings.user or "guest"
    password: str | None = arguments.secret
    if password is None and arguments.secret_file is not None:
        try:
            password = read_password(arguments.secret_file)
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


def said_by(error: urllib.error.HTTPError) -> str:
    """Why a request was refused, in the broker's words."""
    with error:
        said = error.read(SHOWN)
    try:
        return msgspec.json.decode(said, type=RequestRefused).reason
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return said.decode(errors="replace").strip() or error.reason


def base_of(url: str | None, section: str, listener: Listener) -> str:
    """The URL to ask below: the one given, else that of a listener in the settings."""
    if url is not None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            valid = False
        if not valid or not url.isascii() or not url.isprintable() or " " in url:
            raise CommandError(
                f'--url: must be such as http://127.0.0.1:{listener.port}, got "{url}"', 2
            )
        return url.rstrip("/")
    if not listener.enabled:
        raise CommandError(f"{section}.enabled is false in the settings; give --url", 2)
    if listener.port == 0:
        raise CommandError(
            f"{section}.port is 0 in the settings, a free port chosen at start; give --url", 2
        )
    address = ipaddress.ip_address(listener.addresses[0])
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return (
        f"http://{address}:{listener.port}"
        if address.version == 4
        else f"http://[{address}]:{listener.port}"
    )


def fetch(request: urllib.request.Request) -> bytes:
    """The body of a 2xx answer; urllib's HTTPError for another, CommandError if there is none."""
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
        raise CommandError(f"{place} gave no answer in {TIMEOUT:g} s") from None
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        told = (getattr(reason, "strerror", None) or str(reason) or type(reason).__name__)[:SHOWN]
        raise CommandError(
            f"no answer from {place} ({told}); is the broker running there? Else give --url"
        ) from None
