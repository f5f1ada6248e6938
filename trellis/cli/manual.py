"""`trellis man`: prints the manual page of the command line, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from trellis.cli.command_tree import Argument, Command, children_of
from trellis.cli.parsing import Commands, add_command

#: The exit codes, which are the same for all commands.
EXIT_CODES: Final = {
    "0": "success",
    "1": "the command failed: the broker does not answer or refuses, an object does not exist, a "
    "check found a problem, a message reached no queue, a queue has messages and none of them can "
    "be moved (also with --dry-run), or the answer to a question was no",
    "2": "the arguments or the settings are wrong, or a command needs a confirmation, but has "
    "no terminal to ask on, and --yes is missing; nothing was changed",
    "3": "trellis serve: another node of the cluster owns the replicated log",
    "130": "the command was interrupted (Ctrl-C)",
}
#: Flags of all commands that ask a running broker. The page describes them once.
_COMMON: Final = ("url", "login_user", "login_password", "login_password_file", "config", "help")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis man`."""
    command = add_command(
        commands, "man", print_manual, "print the manual page: trellis man | man -l -"
    )
    command.set_defaults(commands=commands)


def print_manual(arguments: argparse.Namespace) -> int:
    """Print the manual page."""
    for line in page(children_of(arguments.commands, "trellis")):
        print(line)
    return 0


def page(commands: list[Command]) -> Iterator[str]:
    """Yield the lines of the manual page, in the markup of `man` (roff)."""
    every = [one for command in commands for one in command.all()]
    yield '.TH TRELLIS 1 "" "Trellis" "Trellis Manual"'
    yield ".ad l"
    yield ".SH NAME"
    yield r"trellis \- a message broker for AMQP 0\-9\-1 and MQTT"
    yield ".SH SYNOPSIS"
    yield r"\fBtrellis\fR \fICOMMAND\fR [\fIARGUMENT\fR]..."
    yield ".SH DESCRIPTION"
    yield _text(
        "trellis serve runs the broker. Most other commands ask a running broker over its HTTP "
        "API; trellis COMMAND --help lists all their flags."
    )
    yield ".SH COMMANDS"
    for command in every:
        if not command.children:
            yield from _command(command)
    yield ".SH COMMON FLAGS"
    known: dict[str, Argument] = {}
    for command in every:
        for flag in command.flags:
            if flag.dest in _COMMON:
                known.setdefault(flag.dest, flag)
    for name in _COMMON:
        if name in known:
            yield from _flag(known[name])
    yield ".SH SETTINGS"
    yield _text(
        "A setting is a key in a file, an environment variable and a flag of trellis serve: "
        "amqp.port is TRELLIS_AMQP_PORT and --amqp-port. A later source overrides an earlier one: "
        "default, file, environment, flag."
    )
    serve = next(command for command in commands if command.name == "serve")
    for flag in serve.flags:
        if flag.setting:
            yield from _flag(flag)
    yield ".SH EXIT STATUS"
    for code, text in EXIT_CODES.items():
        yield from (".TP", rf"\fB{code}\fR", _text(text))
    yield ".SH FILES"
    searched = (
        "settings: the first file that exists, unless --config or $TRELLIS_CONFIG names files"
    )
    yield from (".TP", _text("./broker.toml, /etc/trellis/broker.toml"), searched)


def _command(command: Command) -> Iterator[str]:
    yield ".SS " + _text(command.usage)
    yield _text(command.help[:1].upper() + command.help[1:] + ".")
    for argument in command.arguments:
        yield from (".TP", rf"\fI{_text(argument.placeholder)}\fR", _text(argument.help))
    for flag in command.flags:
        if not flag.setting and flag.dest not in _COMMON:
            yield from _flag(flag)


def _flag(flag: Argument) -> Iterator[str]:
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in flag.names)
    value = rf" \fI{_text(flag.placeholder)}\fR" if flag.takes_value else ""
    yield from (".TP", names + value, _text(flag.help))


def _text(text: str) -> str:
    """Escape the characters of a text that have a meaning in roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
