"""`trellis config`, `check-config` and `hash-password`: print and check settings."""

import argparse
import getpass
import sys

from trellis.auth.passwords import HASHER, scram_hash
from trellis.auth.tokens.authenticator import Tokens
from trellis.cli.actions import add_result, print_json, print_result
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.server.certificates import contexts
from trellis.settings.rendering import default_file, effective, effective_rows


def add(commands: Commands) -> None:
    """Add the parsers of the commands config, check-config and hash-password."""
    settings_usage = "[--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands,
        "config",
        config,
        "print a settings file with all defaults, or the settings in force",
        "[--effective [--json]] " + settings_usage,
    )
    command.add_argument(
        "--effective",
        action="store_true",
        help="print the values in force and their sources, instead of the defaults",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="with --effective: print a JSON list of objects with key, value and source",
    )
    add_settings(command)
    command = add_command(
        commands,
        "check-config",
        check_config,
        "check the settings and certificates",
        "[--json] " + settings_usage,
    )
    add_result(command)
    add_settings(command)
    command = add_command(
        commands,
        "hash-password",
        hash_password,
        "hash a password from a prompt or standard input, for the setting password_hash",
        "[--scram]",
    )
    command.add_argument(
        "--scram",
        action="store_true",
        help="make a hash that MQTT 5 clients can also use to log in by SCRAM-SHA-256",
    )


def config(arguments: argparse.Namespace) -> int:
    """Print a settings file with all defaults, or with --effective the settings in force.

    Raises CommandError, SettingsError.
    """
    if arguments.json and not arguments.effective:
        raise CommandError(
            "--json needs --effective: without --effective, the command prints a TOML file with "
            "all defaults",
            2,
        )
    if arguments.json:
        print_json(effective_rows(*load_settings(arguments)))
        return 0
    print(effective(*load_settings(arguments)) if arguments.effective else default_file(), end="")
    return 0


def check_config(arguments: argparse.Namespace) -> int:
    """Check the settings, the certificates and the keys for JSON Web Tokens.

    Print the listeners' ports and the sources of the settings. Raises SettingsError.
    """
    settings, sources = load_settings(arguments)
    contexts(settings)
    if settings.jwt.enabled:
        Tokens(settings.jwt)
    ports = {name: listener.port for name, listener in settings.listeners.items()}
    listeners = " ".join(f"{name}={port}" for name, port in ports.items())
    known = list(dict.fromkeys(sources.values()))
    sources_text = ", ".join(known) or "no settings given: all defaults"
    print_result(arguments, f"ok: {listeners} ({sources_text})", ports=ports, sources=known)
    return 0


def hash_password(arguments: argparse.Namespace) -> int:
    """Print the hash of a password that is typed at a prompt or read from standard input."""
    try:
        password = _ask() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise CommandError("no password given; type one, or pass one on standard input", 2)
        print(scram_hash(password.encode()) if arguments.scram else HASHER.hash(password))
    except UnicodeError:
        raise CommandError("the password must be UTF-8 text", 2) from None
    return 0


def _ask() -> str:
    try:
        password = getpass.getpass("password: ")
        if password != getpass.getpass("again: "):
            raise CommandError("the two typed passwords differ; type the same password twice", 2)
    except EOFError:
        return ""
    return password
