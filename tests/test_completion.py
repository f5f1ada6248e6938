"""Completion scripts of the shells and the manual page, made from the parsers of the commands."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker import run_command
from tests.foreign import require
from trellis.cli import main, parser
from trellis.cli.command_tree import Command, children_of
from trellis.cli.completion import SHELLS
from trellis.cli.manual import EXIT_CODES

#: In one process, because each process makes the scripts of the three shells anew.
pytestmark = pytest.mark.xdist_group("completion")

ROOT: Final = Path(__file__).parents[1]
#: Returns the words that a shell offers for each line of CASES.
Offered = Callable[[str], list[list[str]]]
#: A line up to the cursor, and words that must, and must not, be offered.
CASES: Final = [
    (["trellis", "pu"], {"publish", "purge"}, {"list", "peek"}),
    (["trellis", "list", ""], {"queues", "consumers", "retained"}, {"serve"}),
    (["trellis", "list", "queues", "--so"], {"--sort"}, {"--amqp-port"}),
    (["trellis", "users", ""], {"list", "add", "delete"}, {"queues"}),
    (["trellis", "users", "add", "--ta"], {"--tags"}, {"--yes"}),
    (["trellis", "users", "delete", "--y"], {"--yes"}, set()),
    (["trellis", "policies", "set", "--apply-to", ""], {"queues", "exchanges"}, {"--priority"}),
    (["trellis", "completion", ""], {"bash", "zsh", "fish"}, set()),
]


def commands() -> Iterator[Command]:
    """Yield each command of `trellis` with the actions of its parser."""
    for action in parser()._actions:
        if action.dest == "command":
            for command in children_of(action, "trellis"):
                yield from command.all()


@functools.cache
def printed(shell: str) -> str:
    """Return the completion script that the command prints for a shell."""
    process = run_command("completion", shell)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


def script(shell: str, tmp_path: Path) -> Path:
    """Write the completion script for a shell to a file."""
    path = tmp_path / f"trellis.{shell}"
    path.write_text(printed(shell))
    return path


def run(*words: str) -> list[str]:
    """Run a command, and return the lines that it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


#: Prints the words that a completion offers, in place of zsh's completion system.
ZSH: Final = """
compdef() { :; }
_describe() { [[ $1 == -o ]] && shift; for each in "${(@P)2}"; do print -r -- "${each%%:*}"; done }
_files() { :; }
compadd() { shift; print -rl -- "$@"; }
"""
#: The flags with which each shell runs the program in its next argument, without its startup files.
PROGRAMS: Final = {
    "bash": ("--norc", "-c"),
    "zsh": ("-f", "-c"),
    "fish": ("--no-config", "-c"),
}
#: Printed between the words for two lines.
END: Final = "----"


def completing(shell: str, words: list[str]) -> str:
    """Return shell code that prints the completions of a line, given as its words.

    The shell must have loaded the completion script.
    """
    line = " ".join(f"'{word}'" for word in words)
    match shell:
        case "bash":
            return (
                f"COMPREPLY=(); COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _trellis; "
                "printf '%s\\n' \"${COMPREPLY[@]}\""
            )
        case "zsh":
            return f"words=({line}); CURRENT={len(words)}; PREFIX=${{words[-1]}}; _trellis"
        case _:
            return f"complete -C '{' '.join(words)}'"


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Offered:
    """Return a function that returns the words which a shell offers for each line of CASES.

    Each shell runs once, for all lines.
    """

    @functools.cache
    def words_of(shell: str) -> list[list[str]]:
        program = shell if shell == "bash" else require(shell)
        directory = tmp_path_factory.mktemp(shell)
        parts = [ZSH] if shell == "zsh" else []
        parts.append(f"source {script(shell, directory)}")
        for words, _, _ in CASES:
            parts += [completing(shell, words), f"echo {END}"]
        groups: list[list[str]] = [[]]
        for line in run(program, *PROGRAMS[shell], "\n".join(parts)):
            if line == END:
                groups.append([])
            else:
                groups[-1].append(line.split("\t")[0])
        assert groups.pop() == [] and len(groups) == len(CASES)
        return groups

    return words_of


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[0]))
def test_a_shell_completes_commands_flags_and_values(
    offered: Offered, shell: str, case: tuple[list[str], set[str], set[str]]
) -> None:
    words, wanted, unwanted = case
    completions = offered(shell)[CASES.index(case)]
    if shell == "zsh":  # zsh itself drops words that do not begin with the typed word.
        completions = [word for word in completions if word.startswith(words[-1])]
    assert wanted <= set(completions)
    assert not unwanted & set(completions)
    if shell == "bash":
        assert all(word.startswith(words[-1]) for word in completions)


def test_bash_leaves_values_without_a_list_to_the_completion_of_files(tmp_path: Path) -> None:
    program = (
        f"source {script('bash', tmp_path)}; COMP_WORDS=(trellis publish --file ''); "
        "COMP_CWORD=3; _trellis; echo ${#COMPREPLY[@]}; complete -p trellis"
    )
    assert run("bash", "--norc", "-c", program) == ["0", "complete -o default -F _trellis trellis"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_in_the_script(tmp_path: Path, shell: str) -> None:
    text = script(shell, tmp_path).read_text()
    words = set(re.findall(r"[\w-]+", text))
    every = list(commands())
    assert len(every) > 60
    for command in every:
        assert command.path in text
        for flag in command.flags:
            names = flag.names if shell != "fish" else [name.lstrip("-") for name in flag.names]
            assert words.issuperset(names), (command.path, flag.names)


def test_every_command_has_a_help_text() -> None:
    assert [command.path for command in commands() if not command.help] == []
    assert [
        (command.path, flag.names)
        for command in commands()
        for flag in command.flags
        if not flag.help
    ] == []


# -- the manual page


def manual(**environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "trellis", "man"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return process.stdout


@pytest.mark.parametrize("environment", [{}, {"HOME": "/nowhere", "COLUMNS": "40"}])
def test_the_manual_page_equals_the_parsers(environment: dict[str, str]) -> None:
    assert manual(**environment) == (ROOT / "trellis" / "cli" / "trellis.1").read_text(), (
        "run: python -m trellis man > trellis/cli/trellis.1"
    )


def test_the_manual_page_has_every_command_and_the_exit_codes() -> None:
    page = (ROOT / "trellis" / "cli" / "trellis.1").read_text().replace("\\-", "-")
    for command in commands():
        assert f"\n.SS {command.path}" in page or command.children, command.path
    assert re.findall(r"^\\fB(\d+)\\fR$", page.partition(".SH EXIT STATUS")[2], re.MULTILINE) == [
        *("0", "1", "2", "3", "130")
    ]


def test_help_and_the_page_about_operating_have_the_same_exit_codes() -> None:
    summary = (parser().epilog or "").partition("exit codes: ")[2]
    assert re.findall(r"(?:^|, )(\d+) ", summary) == list(EXIT_CODES)
    page = (ROOT / "docs" / "operating.md").read_text().partition("## Exit codes")[2]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert {code: text.replace("`", "") for code, text in rows} == EXIT_CODES


def test_man_formats_the_page_without_a_warning() -> None:
    groff = require("groff")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-b", str(ROOT / "trellis" / "cli" / "trellis.1")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert "COMMON FLAGS" in re.sub(r".\x08", "", done.stdout)


def test_a_typo_names_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, wanted in (("pek", "peek"), ("lsit", "list"), ("re-drive", "redrive")):
        assert main([typed]) == 2
        assert f"the nearest is {wanted} " in capsys.readouterr().err


# -- JSON

#: The commands without a JSON form, and the reason.
WITHOUT_JSON: Final = {
    "trellis serve": "runs the broker; its answer is the log",
    "trellis hash-password": "prints a single word, the hash",
    "trellis completion": "prints a script of a shell",
    "trellis man": "prints a manual page",
    "trellis store dump": "prints records of the log for a reader who looks for a fault",
    "trellis stream head": "prints one JSON object per row in any case",
    "trellis cluster demo": "shows a failover to a person",
    "trellis asyncapi": "prints an AsyncAPI document, as YAML or JSON",
    "trellis pipeline demo": "writes an HTML page",
}


def test_every_command_that_prints_an_answer_has_a_json_form() -> None:
    without = {
        command.path
        for command in commands()
        if not command.children and not any("--json" in flag.names for flag in command.flags)
    }
    assert without == set(WITHOUT_JSON)
