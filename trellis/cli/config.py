"""Commands about configuration: print it, check it, make a password hash for it."""

import argparse
import getpass
import sys

from trellis.auth.jwt import Tokens
from trellis.auth.passwords import HASHER
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.server.certificates import contexts
from trellis.settings.rendering import default_file, effective

# 24 ms a login; OWASP's second choice for argon2id, with 19 MiB for every thread that hashes.


def add(commands: Commands) -> None:
    settings_usage = "[--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands,
        "config",
        config,
        "print the default settings file",
        "[--effective] " + settings_usage,
    )
    command.add_argument(
        "--effective",
        action="store_true",
        help="print the values that hold with these settings, and their sources",
    )
    add_settings(command)
    add_settings(
        add_command(commands, "check-config", check_config, "check the settings", settings_usage)
    )
    add_command(
        commands,
        "hash-password",
        hash_password,
        "print the hash of a password, asked for or read from standard input",
    )


def config(arguments: argparse.Namespace) -> int:
    print(effective(*load_settings(arguments)) if arguments.effective else default_file(), end="")
    return 0


def check_config(arguments: argparse.Namespace) -> int:
    settings, sources = load_settings(arguments)
    contexts(settings)
    if settings.jwt.keys:
        Tokens(settings.jwt)
    listeners = " ".join(f"{name}={listener.port}" for name, listener in settings.listeners.items())
    places = ", ".join(dict.fromkeys(sources.values())) or "nothing given, all defaults"
    print(f"ok: {listeners} ({places})")
    return 0


def hash_password(arguments: argparse.Namespace) -> int:
    try:
        password = _ask() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise CommandError("no password given", 2)
        print(HASHER.hash(password))
    except UnicodeError:
        raise CommandError("the password must be UTF-8", 2) from None
    return 0


def _ask() -> str:
    try:
        password = getpass.getpass("password: ")
        if password != getpass.getpass("again: "):
            raise CommandError("the two passwords differ", 2)
    except EOFError:
        return ""
    return password
