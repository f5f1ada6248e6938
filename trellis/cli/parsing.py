"""How arguments are read: errors are one line, and every setting is a flag."""

import argparse
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from trellis.settings import Loaded, load_with_sources
from trellis.settings.errors import nearest, printable
from trellis.settings.options import OPTIONS, Option
from trellis.settings.rendering import quantity, title

Commands = Any  # what add_subparsers returns: argparse has no public name for it
METAVARS = {"s": "SECONDS", "bytes": "BYTES"}


class CommandError(Exception):
    """What went wrong, in one line, and the exit code it ends with."""

    def __init__(self, problem: str, code: int = 1) -> None:
        super().__init__(printable(problem))
        self.code = code


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises CommandError in one line, names the nearest flag, and uses no
    colour.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Formatter)
        self.color = False  # Python 3.14 colours help by default
        self.flags: dict[str, list[str]] = {}

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see `{self.prog} --help`)", 2)

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments in `argv`; CommandError for one that no command knows."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            own: Parser = getattr(arguments, "parser", self)
            name = unknown[0].partition("=")[0]
            known = [
                flag
                for action in own._actions
                for flag in action.option_strings
                if flag.startswith("--")
            ]
            hint = f"; the nearest flag is {nearest(name, known)}" if name.startswith("-") else ""
            own.error(f"unknown argument {name}{hint}")
        return arguments


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)


def add_command(commands: Commands, name: str, run: Any, text: str, usage: str = "") -> Parser:
    """Add the command `name`; `run` takes the parsed arguments and returns the exit code."""
    command: Parser = commands.add_parser(
        name,
        prog=f"trellis {name}",
        usage=f"trellis {name} {usage}".strip(),
        help=text,
        description=text[:1].upper() + text[1:] + ".",
    )
    command.set_defaults(run=run, parser=command)
    return command


def number(kind: type[int] | type[float], least: float) -> Any:
    """The type of an argument that is a number, this one or above."""

    def read(text: str) -> float:
        try:
            value = kind(text)
            if least <= value < float("inf"):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f'must be {"a whole number" if kind is int else "a number"} of at least {least:g}, got "{text}"'
        )

    return read


def add_settings(command: Parser, section: str = "", without: Collection[str] = ()) -> None:
    """Add --config and a flag for every setting but `without`; --help shows all, or those of
    `section` only.
    """
    group = command.add_argument_group(
        "settings",
        "Every flag of `trellis serve` is accepted; these matter here." if section else None,
    )
    group.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="settings file; may be given again, later ones win [$TRELLIS_CONFIG, else ./broker.toml, else "
        "/etc/trellis/broker.toml]",
    )
    groups = {"": group}
    for option in OPTIONS.values():
        if option.in_files_only or option.key in without:
            continue
        shown = section in ("", option.section)
        if shown and option.section not in groups:
            groups[option.section] = command.add_argument_group(title(option.section))
        groups[option.section if shown else ""].add_argument(
            option.flag,
            dest=option.key,
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=_help(option) if shown else argparse.SUPPRESS,
        )


def load_settings(arguments: argparse.Namespace) -> Loaded:
    """The settings that `arguments` ask for."""
    given = vars(arguments)
    flags = {key: given[key] for key in OPTIONS if key in given}
    return load_with_sources(arguments.config, None, flags)


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
