"""`trellis auth check-token`: the user and permissions of a JSON Web Token, or its refusal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from trellis.auth.tokens.fetching import FetchError, KeyFetcher
from trellis.auth.tokens.identity import TokenIdentity
from trellis.auth.tokens.keys import Key, key_ids, read_key_file
from trellis.auth.tokens.refusal import TokenRefused
from trellis.auth.tokens.verifier import MAX_TOKEN, TokenVerifier, unverified_claims
from trellis.cli.actions import add_group
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.settings.errors import printable
from trellis.settings.options import OPTIONS
from trellis.settings.tokens import Jwt

#: Exit code if the token is refused.
REFUSED: Final = 1
#: Width of the column of names in the output, in characters.
_NAMES: Final = 12


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis auth`."""
    group = add_group(commands, "auth", "check logins with JSON Web Tokens")
    command = add_command(
        group,
        "check-token",
        check_token,
        "show the user and the permissions of a JSON Web Token, or the reason for which the broker "
        "refuses it",
        "FILE [--json] [--config FILE]... [FLAG VALUE]...",
        group="auth",
        more="The command reads the settings and fetches the keys of the provider, as the broker "
        "does. It needs no running broker.",
    )
    command.add_argument("file", metavar="FILE", help="file with the token; - is standard input")
    command.add_argument("--json", action="store_true", help="print the result as a JSON object")
    add_settings(command, uses=[key for key in OPTIONS if key.startswith("jwt.")])


def check_token(arguments: argparse.Namespace) -> int:
    """Print the user and the permissions of a token, or the reason of its refusal.

    Return REFUSED if the token is refused. Raises SettingsError, CommandError.
    """
    settings = load_settings(arguments).settings.jwt
    if not settings.enabled:
        raise CommandError(
            "the settings name no keys for tokens: set jwt.keys, jwt.jwks_url or jwt.discovery", 2
        )
    token = _read(arguments.file)
    verifier = TokenVerifier(settings)
    answer: dict[str, Any] = {"accepted": False, "part": "", "reason": ""}
    try:
        header = verifier.header(token)
        answer["algorithm"], answer["kid"] = header["alg"], header.get("kid")
        keys = _keys(settings)
        answer["keys"] = key_ids(keys)
        answer |= _described(verifier.identity(token, keys), verifier, token)
    except TokenRefused as refusal:
        answer |= {"part": refusal.part, "reason": str(refusal)}
    claims = unverified_claims(token)
    for name in ("iss", "aud", "sub", settings.user, *settings.scopes.split()):
        if name in claims:
            answer.setdefault("claims", {})[name] = claims[name]
    if arguments.json:
        print(msgspec.json.encode(answer).decode())
    else:
        print("\n".join(_lines(answer)))
    return 0 if answer["accepted"] else REFUSED


def _read(name: str) -> bytes:
    """Return the token in a file, without spaces around the token and without the word Bearer.

    The file name "-" is standard input. Raises CommandError.
    """
    try:
        if name == "-":
            text = sys.stdin.buffer.read(4 * MAX_TOKEN)
        else:
            with Path(name).open("rb") as file:
                text = file.read(4 * MAX_TOKEN)
    except OSError as error:
        raise CommandError(f"cannot read {printable(name)}: {error.strerror}", 2) from None
    return text.strip().removeprefix(b"Bearer ").strip()


def _keys(settings: Jwt) -> list[Key]:
    if not settings.fetches:
        return read_key_file(settings.keys)
    try:
        return KeyFetcher(settings).fetch()
    except FetchError as error:
        raise CommandError(f"cannot fetch the keys of the token provider: {error}") from None


def _described(identity: TokenIdentity, verifier: TokenVerifier, token: bytes) -> dict[str, Any]:
    """Return the user and the permissions of an accepted token."""
    grants = identity.grants
    return {
        "accepted": True,
        "user": identity.name,
        "expires": datetime.fromtimestamp(int(identity.expires), UTC).isoformat(),
        "scopes": [scope.text for scope in grants.scopes],
        "unused": verifier.mapping.unused(unverified_claims(token)),
        "tags": list(grants.tags),
        "vhosts": list(grants.vhosts),
        "rules": list(grants.rules),
        "roles": list(grants.roles),
    }


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of text that describe the result of a check."""
    if answer["accepted"]:
        yield printable(f"accepted: user '{answer['user']}', until {answer['expires']}")
    else:
        yield printable(f"refused: {answer['reason']}")
        yield _line("decided by", answer["part"])
    for name in ("algorithm", "kid", "keys", "scopes", "unused", "tags"):
        if answer.get(name):
            yield _line(name, answer[name])
    if answer.get("rules") or answer.get("roles"):
        yield _line("vhosts", answer["vhosts"])
    for rule in answer.get("rules", ()):
        yield _line("rule", rule)
    if answer.get("roles"):
        yield _line("roles", answer["roles"])
        yield _line("", "`trellis roles list` shows the roles that the broker has")
    for name, value in answer.get("claims", {}).items():
        yield _line(f"claim {name}", value)
    if answer["accepted"] and not (answer["scopes"] or answer["rules"] or answer["roles"]):
        yield _line("note", "the token grants no permissions, so the client cannot enter any vhost")


def _line(name: str, value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return printable(f"  {name:<{_NAMES}} {text}")[:1000]
