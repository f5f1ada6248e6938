"""The tree of all commands, read from their parsers, for the completion and the manual page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from trellis.cli.parsing import Commands, Parser
from trellis.settings.options import OPTIONS

#: Placeholders of values that are names of files.
_FILES: Final = ("FILE", "DIR", "DIRECTORY")


class Argument:
    """A flag or a positional argument of a command.

    `names` is empty for a positional argument. `words` are the permitted values, if they are known.
    `takes_value` is False for a flag without a value. `setting` is True if the flag is a setting.
    """

    def __init__(self, action: argparse.Action) -> None:
        self.names = list(action.option_strings)
        self.dest = action.dest
        self.help = plain(action.help)
        self.takes_value = action.nargs != 0
        placeholder = action.metavar
        # `metavar` has one name for each value of a flag with several values.
        if isinstance(placeholder, tuple):
            *first, last = placeholder
            last = f"[{last} ...]" if action.nargs == "+" else last
            placeholder = " ".join([*first, last])
        self.placeholder = placeholder or action.dest.upper().replace("-", "_")
        choices = [str(choice) for choice in action.choices or ()]
        self.words = choices or (self.placeholder.split("|") if "|" in self.placeholder else [])
        self.words = [word for word in self.words if not word.isupper()]
        self.is_file = self.placeholder in _FILES
        self.setting = action.dest in OPTIONS


class Command:
    """A command or an action of a command, such as `trellis users add`.

    `arguments` has its positional arguments, `flags` its flags, and `children` its actions.
    """

    def __init__(self, path: str, text: str, parser: Parser) -> None:
        self.path = path
        self.name = path.rpartition(" ")[2]
        self.help = plain(text)
        self.usage = (parser.usage or path).replace("%(prog)s", path)
        self.flags: list[Argument] = []
        self.arguments: list[Argument] = []
        self.children: list[Command] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                self.children = children_of(action, path)
            elif action.help == argparse.SUPPRESS:
                continue
            elif action.option_strings:
                self.flags.append(Argument(action))
            else:
                self.arguments.append(Argument(action))

    def all(self) -> Iterator[Command]:
        """Yield this command and all commands below it."""
        yield self
        for child in self.children:
            yield from child.all()


def children_of(commands: Commands, path: str) -> list[Command]:
    """Return the commands that were added to `commands`, a result of `add_subparsers`.

    `path` is the command line up to these commands, such as `trellis users`.
    """
    texts: dict[str, Any] = {action.dest: action.help for action in commands._choices_actions}
    return [
        Command(f"{path} {name}", texts.get(name) or "", parser)
        for name, parser in commands.choices.items()
    ]


def plain(text: str | None) -> str:
    """Return the help text of an argument in one line."""
    return " ".join((text or "").replace("%%", "%").split())
