"""`trellis completion`: prints a script with which a shell completes commands, flags and values.

Each script is made from the parsers of the commands. When the user asks for a completion, the
script finds the command at the beginning of the line. Then the script offers the command's actions,
its flags, or the values of the flag before the cursor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from trellis.cli.command_tree import Argument, Command, children_of
from trellis.cli.parsing import Commands, add_command

SHELLS: Final = ("bash", "zsh", "fish")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis completion`."""
    command = add_command(
        commands,
        "completion",
        completion,
        "print a script for the completion of commands and flags in a shell",
        "bash|zsh|fish",
    )
    command.add_argument(
        "shell", metavar="SHELL", choices=SHELLS, help=f"the shell: {', '.join(SHELLS)}"
    )
    command.set_defaults(commands=commands)


def completion(arguments: argparse.Namespace) -> int:
    """Print the completion script for the shell that the arguments name."""
    commands = [
        command for child in children_of(arguments.commands, "trellis") for command in child.all()
    ]
    roots = [command for command in commands if command.path.count(" ") == 1]
    script_lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    for line in script_lines(commands, roots):
        print(line)
    return 0


def _quoted(text: str) -> str:
    """Return a text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _patterns(commands: Sequence[Command], between: str) -> str:
    """Return the paths of all commands as alternatives of the shell's `case`.

    `between` is the shell's separator of alternatives.
    """
    return between.join(_quoted(command.path) for command in commands)


def _valued(commands: Sequence[Command]) -> Iterator[tuple[Command, Argument]]:
    """Yield (command, flag) for each flag that takes a value."""
    for command in commands:
        for flag in command.flags:
            if flag.takes_value:
                yield command, flag


def _words(command: Command) -> list[str]:
    """Return the words that may follow a command."""
    words = [child.name for child in command.children]
    for argument in command.arguments[:1]:
        words += argument.words
    return words


def _bash(commands: Sequence[Command], roots: Sequence[Command]) -> Iterator[str]:
    yield "# Completion for bash: source <(trellis completion bash)"
    yield "_trellis() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    local at=trellis words="" i'
    yield "    COMPREPLY=()"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "$at ${COMP_WORDS[i]}" in'
    yield f'            {_patterns(commands, "|")}) at="$at ${{COMP_WORDS[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$at $prev" in'
    for command, flag in _valued(commands):
        names = "|".join(_quoted(f"{command.path} {name}") for name in flag.names)
        if flag.words:
            words = _quoted(" ".join(flag.words))
            yield f'        {names}) COMPREPLY=($(compgen -W {words} -- "$cur")); return ;;'
        else:
            yield f"        {names}) return ;;"  # `-o default` completes names of files.
    yield "    esac"
    yield '    case "$at" in'
    yield f"        trellis) words={_quoted(' '.join(root.name for root in roots))} ;;"
    for command in commands:
        following = _words(command) + [name for flag in command.flags for name in flag.names]
        yield f"        {_quoted(command.path)}) words={_quoted(' '.join(following))} ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _trellis trellis"


def _described(name: str, text: str) -> str:
    """Return a word and its description in the form that zsh's `_describe` reads."""
    return _quoted(f"{name}:{text}") if text else _quoted(name)


def _zsh(commands: Sequence[Command], roots: Sequence[Command]) -> Iterator[str]:
    yield "#compdef trellis"
    yield "# Completion for zsh: source <(trellis completion zsh), after compinit"
    yield "_trellis() {"
    yield "    local at=trellis i"
    yield "    local -a names flags"
    yield "    for ((i = 2; i < CURRENT; i++)); do"
    yield '        case "$at ${words[i]}" in'
    yield f'            {_patterns(commands, "|")}) at="$at ${{words[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$at ${words[CURRENT-1]}" in'
    for command, flag in _valued(commands):
        names = "|".join(_quoted(f"{command.path} {name}") for name in flag.names)
        values = " ".join(_quoted(word) for word in flag.words)
        yield f"        {names}) {f'compadd -- {values}' if values else '_files'}; return ;;"
    yield "    esac"
    yield '    case "$at" in'
    described = " ".join(_described(root.name, root.help) for root in roots)
    yield f"        trellis) names=({described}) ;;"
    for command in commands:
        following = [_described(child.name, child.help) for child in command.children]
        words = " ".join(following or [_quoted(word) for word in _words(command)])
        flags = " ".join(
            _described(name, flag.help) for flag in command.flags for name in flag.names
        )
        yield f"        {_quoted(command.path)}) names=({words}) flags=({flags}) ;;"
    yield "    esac"
    yield "    (( $#names )) && _describe 'command' names"
    yield "    [[ $PREFIX == -* || $#names -eq 0 ]] && (( $#flags )) && _describe -o 'flag' flags"
    yield "    (( $#names )) || _files"
    yield "}"
    yield "compdef _trellis trellis"


def _fish(commands: Sequence[Command], roots: Sequence[Command]) -> Iterator[str]:
    yield "# Completion for fish: trellis completion fish | source"
    yield "function __trellis_at"
    yield "    set -l at trellis"
    yield "    for word in (commandline -opc)[2..-1]"
    yield '        switch "$at $word"'
    yield f"            case {_patterns(commands, ' ')}"
    yield '                set at "$at $word"'
    yield "        end"
    yield "    end"
    yield '    test "$at" = "$argv[1]"'
    yield "end"
    for root in roots:
        yield _fish_line("trellis", f"-f -a {_quoted(root.name)}", root.help)
    for command in commands:
        for child in command.children:
            yield _fish_line(command.path, f"-f -a {_quoted(child.name)}", child.help)
        if not command.children:
            for word in _words(command):
                yield _fish_line(command.path, f"-f -a {_quoted(word)}", "")
        for flag in command.flags:
            yield _fish_line(command.path, _fish_flag(flag), flag.help)


def _fish_flag(flag: Argument) -> str:
    """Return the options of fish's `complete` for a flag."""
    names = " ".join(
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names
    )
    if not flag.takes_value:
        return names
    if flag.words:
        return f"{names} -x -a {_quoted(' '.join(flag.words))}"
    return f"{names} -r"


def _fish_line(path: str, options: str, text: str) -> str:
    condition = _quoted(f'__trellis_at "{path}"')
    described = f" -d {_quoted(text)}" if text else ""
    return f"complete -c trellis -n {condition} {options}{described}"
