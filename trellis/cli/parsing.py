"""Arguments of commands: errors in one line, and a flag for every setting."""

import argparse
import functools
import os
import re
import shlex
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from trellis.settings import Loaded, load_with_sources
from trellis.settings.errors import nearest, printable, shown
from trellis.settings.options import OPTIONS, Option
from trellis.settings.rendering import quantity, title

#: The object that add_subparsers returns; argparse has no public name for its class.
Commands = Any
#: Placeholders of values in --help, by unit.
METAVARS = {"s": "SECONDS", "bytes": "BYTES"}
#: Flag that a user may give by mistake -> flag with the same meaning in this command.
_SYNONYMS = {"--login": "--user"}
#: The virtual host that commands use if the command line names none.
DEFAULT_VHOST = "/"
#: A word that may be the name of a virtual host, and is hardly a regular expression.
_VHOST_LIKE = re.compile(r"[\w./-]+")
#: The form of an age in the value of an option, such as 15m, and the seconds of each unit.
_AGE = re.compile(r"(\d+)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class CommandError(Exception):
    """Raised if a command fails. The text is one line for stderr; `code` is the exit code."""

    def __init__(self, problem: str, code: int = 1) -> None:
        super().__init__(printable(problem))
        self.code = code

    def advice(self) -> str:
        """Return text for the end of the printed error, such as the next command; "" for none.

        The advice may need further requests to the broker, so it is fetched only for an error that
        ends the command.
        """
        return ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises CommandError instead of exiting, and prints no colours.

    `parse` suggests the nearest flag for an unknown flag. Flags cannot be abbreviated.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Formatter)
        self.color = False  # Python 3.14 prints help in colour by default.
        #: Suggestion at the end of the error for too many words on the command line.
        self.hint = ""
        #: True if the command has the flag --vhost, for a virtual host.
        self.has_vhost = False
        #: The index, from 0, of the word that RabbitMQ's tools take as the virtual host; None for
        #: other commands. The error about one word too many suggests --vhost with this word.
        self.vhost_position: int | None = None

    def error(self, message: str) -> NoReturn:
        """Raise CommandError with the message, which ends with the hint to call --help."""
        raise CommandError(f"{message} (see `{self.prog} --help`)", 2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError, with the nearest choice, unless the value is one of the choices."""
        choices = action.choices
        if choices is None or value in choices:
            return
        known = [str(choice) for choice in choices]
        commands = isinstance(action, argparse._SubParsersAction)
        kind = "value" if not commands else "command" if action.dest == "command" else "action"
        problem = f"unknown {kind} {shown(value)}; the nearest is {nearest(str(value), known)}"
        if not commands:
            problem += f"; valid values are {', '.join(known)}"
        raise argparse.ArgumentError(None if commands else action, problem)

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse `argv`, by default sys.argv[1:]. Raises CommandError for an unknown argument."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            own: Parser = getattr(arguments, "parser", self)
            if unknown[0].startswith("-"):
                own._refuse_flag(unknown[0].partition("=")[0])
            own._refuse_word(unknown, arguments)
        return arguments

    def _refuse_flag(self, name: str) -> NoReturn:
        """Raise CommandError for an unknown flag, with the nearest flag of the command."""
        known = [
            flag
            for action in self._actions
            for flag in action.option_strings
            if flag.startswith("--") and not isinstance(action, _UnusedSetting)
        ]
        words = [one.metavar for one in self._actions if f"--{one.dest}" == name]
        if words:
            hint = f"give {words[0]} without a flag"
        else:
            # A user who gives --port means --http-port; --port is no misspelt --sort.
            longer = [flag for flag in known if name[:2] == "--" and flag.endswith(name[1:])]
            hint = f"the nearest flag is {nearest(_SYNONYMS.get(name, name), longer or known)}"
        self.error(f"unknown argument {name}; {hint}")

    def _refuse_word(self, unknown: list[str], arguments: argparse.Namespace) -> NoReturn:
        """Raise CommandError for too many words; suggest --vhost if a word is a virtual host.

        `unknown` are the last words, which the command does not take.
        """
        vhost = self._misplaced_vhost(unknown, arguments) if self.has_vhost else ""
        if vhost:
            text = f"unknown argument {vhost}; to name a virtual host, use --vhost"
            self.error(f"{text} {shlex.quote(vhost)}")
        name = unknown[0]
        self.error(f"unknown argument {name if name.strip() else shown(name)}{self.hint}")

    def _misplaced_vhost(self, unknown: list[str], arguments: argparse.Namespace) -> str:
        """Return the word that was meant as the name of a virtual host; "" if there is none."""
        words: list[str] = []
        for action in self._actions:
            value = None if action.option_strings else getattr(arguments, action.dest, None)
            if value is not None:
                words += map(str, value if isinstance(value, list) else [value])
        words += unknown
        if DEFAULT_VHOST in words:
            return DEFAULT_VHOST
        if self.vhost_position is None or len(unknown) > 1:
            return ""
        word = words[self.vhost_position]
        return word if _VHOST_LIKE.fullmatch(word) else ""


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Return a help text in lines, without line breaks in names such as `max-length`."""
        import textwrap  # needed for --help only

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def add_command(
    commands: Commands,
    name: str,
    run: Any,
    text: str,
    usage: str = "",
    *,
    group: str = "",
    more: str = "",
) -> Parser:
    """Add the command `trellis NAME`, or `trellis GROUP NAME`.

    `run` takes the parsed arguments and returns the exit code. `text` is the help of the command,
    without a capital and a full stop. `usage` follows the name. `more` are further sentences of
    --help.
    """
    path = f"trellis {group} {name}" if group else f"trellis {name}"
    command: Parser = commands.add_parser(
        name,
        prog=path,
        usage=f"{path} {usage}".strip(),
        help=text,
        description=f"{text[:1].upper()}{text[1:]}. {more}".strip(),
    )
    command.set_defaults(run=run, parser=command)
    return command


def number(kind: type[int] | type[float], least: float) -> Any:
    """Return a function for argparse's `type`, which reads a finite number of at least `least`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
            if least <= value < float("inf"):
                return value
        except ValueError:
            pass
        expected = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f'must be {expected} of at least {least:g}, got "{text}"')

    return read


def age_of(text: str) -> int:
    """Return the seconds of an age such as 15m, 2h or 7d, the value of an option.

    Raises argparse.ArgumentTypeError.
    """
    age = _AGE.fullmatch(text)
    if age is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not an age: give an age such as 15m, 2h or 7d"
        )
    return int(age[1]) * _UNITS[age[2]]


def time_of(text: str) -> float:
    """Return the time in the value of an option, in seconds since 1970.

    The value is an age such as `15m`, or an ISO 8601 time (UTC if it names no zone). Raises
    argparse.ArgumentTypeError.
    """
    if _AGE.fullmatch(text):
        return time.time() - age_of(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a time: give an age such as 15m, 2h or 7d, or an ISO 8601 time such "
            "as 2026-11-24T14:00"
        ) from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


class _UnusedSetting(argparse.Action):
    """The flag of a setting that the command does not use: the parser refuses the flag.

    `const` names the flags of settings that the command uses.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, *_: object, option_string: str | None = None
    ) -> None:
        """Raise CommandError: the command does not use the setting of this flag."""
        parser.error(
            f"{option_string or self.option_strings[0]} has no effect in `{parser.prog}`, which "
            f"uses only these settings: {self.const}"
        )


def add_settings(
    command: Parser,
    *,
    uses: Collection[str] = (),
    without: Collection[str] = (),
    only: Collection[str] = (),
) -> None:
    """Add --config and a flag for every setting except `without`.

    With the keys `uses`, --help shows only these settings; the flags of the other settings are
    accepted, so that the command can have the same flags as `trellis serve`. With the keys `only`,
    --help shows only these settings, and the flags of other settings are refused.
    """
    command.set_defaults(used_settings=tuple(only))
    command._add_container_actions(_settings(tuple(uses), tuple(without), tuple(only)))


@functools.cache
def _settings(uses: tuple[str, ...], without: tuple[str, ...], only: tuple[str, ...]) -> Parser:
    """Return a parser with the flags of `add_settings`, which commands add to their own parsers.

    The parser is cached: most commands of a module have the same flags, and making them takes 2 ms.
    """
    flags = Parser(add_help=False)
    text = "All flags of `trellis serve` are accepted; this command uses only the flags below."
    if only:
        text = "This command uses only the settings of the flags below."
    group = flags.add_argument_group("settings", text if uses or only else None)
    group.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="settings file; may be given several times: a later file overrides an earlier one "
        "[$TRELLIS_CONFIG, else ./broker.toml, else /etc/trellis/broker.toml]",
    )
    groups = {"": group}
    used = ", ".join(OPTIONS[key].flag for key in only)
    for option in OPTIONS.values():
        if option.in_files_only or option.key in without:
            continue
        if only and option.key not in only:
            flags.add_argument(
                option.flag, action=_UnusedSetting, const=used, dest="", help=argparse.SUPPRESS
            )
            continue
        shown = bool(only) or not uses or option.key in uses
        if shown and option.section not in groups:
            groups[option.section] = flags.add_argument_group(title(option.section))
        groups[option.section if shown else ""].add_argument(
            option.flag,
            dest=option.key,
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=_help(option) if shown else argparse.SUPPRESS,
        )
    return flags


def load_settings(arguments: argparse.Namespace) -> Loaded:
    """Return the settings from files, environment and flags, with their sources.

    If the environment has a password but no user, the password belongs to the user who logs in (the
    flag `--user` of a command). Raises SettingsError.
    """
    given = vars(arguments)
    flags = {key: given[key] for key in OPTIONS if key in given}
    has_password = "TRELLIS_PASSWORD" in os.environ or "TRELLIS_PASSWORD_FILE" in os.environ
    if given.get("login_user") and has_password and "TRELLIS_USER" not in os.environ:
        flags["user"] = given["login_user"]
    return load_with_sources(arguments.config, None, flags, arguments.used_settings)


def _metavar(option: Option) -> str:
    if option.words:
        return "|".join(option.words)
    if option.type is bool:
        return "true|false"
    if option.type in (int, float):
        return METAVARS.get(option.unit, "PORT" if option.name == "port" else "N")
    return option.name.upper()


def _help(option: Option) -> str:
    default = quantity(option.default, option.unit)
    text = f"{option.help} [{default}]" if default else option.help
    return text.replace("%", "%%")
