"""Tests of the arguments of commands: help, errors, and the modules that a command imports."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.addresses import free_port
from tests.cli.command_line import error_of, run
from trellis import cli
from trellis.cli import COMMANDS
from trellis.cli.parsing import CommandError, Parser
from trellis.settings.options import OPTIONS

SETTINGS_COMMANDS = ("serve", "check-config", "config", "cluster check", "store verify")
LOG = ["--cluster-name", "--cluster-servers", "--cluster-topic"]


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    for command in (
        "serve",
        "version",
        "config",
        "check-config",
        "hash-password",
        "health",
        "list",
    ):
        assert f"\n    {command} " in out


def test_help_exits_with_0_and_has_no_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run(capsys, "serve", "--help")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\nThe listener for MQTT 3.1, 3.1.1 and 5, and limits of MQTT clients:\n" in out
    assert "  --amqp-port PORT " in out
    assert "[16 MiB]" in out
    assert "[14 days]" in out
    for option in OPTIONS.values():
        assert (f" {option.flag} " in out) != option.in_files_only


@pytest.mark.parametrize(
    ("command", "used"),
    [
        ("health", ["--metrics-enabled", "--metrics-host", "--metrics-port"]),
        ("cluster status", sorted([*LOG, "--cluster-silence", "--cluster-unsafe"])),
        (
            "cluster check",
            sorted(
                [*LOG, "--cluster-lease", "--cluster-silence", "--cluster-unsafe", "--log-audit"]
            ),
        ),
        ("cluster seed", [*LOG, "--data-dir", "--log-audit"]),
        ("cluster forget", [*LOG, "--log-audit"]),
        ("store verify", ["--data-dir"]),
        ("store repair", ["--data-dir", "--log-audit"]),
        ("list", ["--http-enabled", "--http-host", "--http-port", "--http-tls"]),
        ("users add", ["--http-enabled", "--http-host", "--http-port", "--http-tls"]),
        (
            "replay",
            [
                *("--amqp-host", "--amqp-port"),
                *("--http-enabled", "--http-host", "--http-port", "--http-tls"),
            ],
        ),
    ],
)
def test_help_of_a_command_shows_only_the_settings_that_it_uses(
    capsys: pytest.CaptureFixture[str], command: str, used: list[str]
) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    own = {"--user", "--password", "--password-file"}
    shown = re.findall(r"^  (--[a-z-]+) ", out, re.MULTILINE)
    flags = {option.flag for option in OPTIONS.values()}
    assert sorted(flag for flag in shown if flag in flags - own) == used


def test_help_breaks_no_name_at_a_hyphen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "policies", "set", "--help")
    assert "'{\"max-length\": 1000}'" in out and re.search(r"\w-$", out, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("health --http-port 15672", "--metrics-enabled, --metrics-host, --metrics-port"),
        ("health --amqp-port=5672", "--metrics-enabled, --metrics-host, --metrics-port"),
        ("list queues --metrics-port 1", "--http-enabled, --http-host, --http-port, --http-tls"),
        ("queues delete q --data-dir x", "--http-enabled, --http-host, --http-port, --http-tls"),
    ],
)
def test_the_flag_of_a_setting_that_a_client_does_not_use_is_refused(
    capsys: pytest.CaptureFixture[str], line: str, used: str
) -> None:
    flag = re.findall(r"--[a-z-]+", line)[0]
    command = re.split(r" queues --| q --| --", line)[0]
    assert error_of(capsys, *line.split()) == (
        f"{flag} has no effect in `trellis {command}`, which uses only these settings: {used} (see "
        f"`trellis {command} --help`)"
    )


@pytest.mark.parametrize("command", SETTINGS_COMMANDS)
def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    effective = ["--effective"] if command == "config" else []
    error = error_of(
        capsys, *command.split(), *effective, "--limits-queues=-1", "--log-level", "info"
    )
    assert error == '--limits-queues: limits.queues: must be a whole number at least 0, got "-1"'


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("serv", 'unknown command "serv"; the nearest is serve (see `trellis --help`)'),
        ("users ad", 'unknown action "ad"; the nearest is add (see `trellis users --help`)'),
        (
            "serve --amqp-prot 1",
            "unknown argument --amqp-prot; the nearest flag is --amqp-port (see `trellis serve --",
        ),
        (
            "check-config --amqp-por=1",
            "unknown argument --amqp-por; the nearest flag is --amqp-port",
        ),
        (
            "check-config file.toml",
            "unknown argument file.toml (see `trellis check-config --help`)",
        ),
        ("serve --config", "argument --config: expected one argument"),
        ("list", "the following arguments are required: KIND"),
        (
            "list queuez",
            'argument KIND: unknown value "queuez"; the nearest is queues; valid values',
        ),
        ("list queues --columms a", "unknown argument --columms; the nearest flag is --columns"),
        ("bindings declare a b --key c", "unknown argument --key; give KEY without a flag"),
        ("move a b", "unknown argument b; the target is --to QUEUE or --exchange NAME"),
        # The order of RabbitMQ's tools: the word too many is the virtual host, not the last word.
        (
            "permissions set ann / .* .* .*",
            "unknown argument /; to name a virtual host, use --vhost / (see `trellis permissions s",
        ),
        (
            "permissions set / ann .* .* .*",
            "unknown argument /; to name a virtual host, use --vhost / (see `trellis permissions s",
        ),
        (
            "permissions set ann plant .* .* .*",
            "unknown argument plant; to name a virtual host, use --vhost plant (see",
        ),
        (
            "permissions set ann .* .* .* plant",
            "unknown argument plant; to name a virtual host, use --vhost NAME (see",
        ),
        (
            "permissions set ann .* .* .* plant more",
            "unknown argument plant; to name a virtual host, use --vhost NAME (see",
        ),
        ("permissions clear ann /", "unknown argument /; to name a virtual host, use --vhost / (s"),
        (
            "permissions clear ann plant",
            "unknown argument plant; to name a virtual host, use --vhost plant (see",
        ),
        ("publish / sensors a x", "unknown argument /; to name a virtual host, use --vhost / (see"),
        ("queues delete a b=c", "unknown argument b=c; to name a virtual host, use --vhost NAME"),
        ("why topic T --login ann", "unknown argument --login; the nearest flag is --user (see"),
    ],
)
def test_error_in_arguments_is_one_line(
    capsys: pytest.CaptureFixture[str], line: str, error: str
) -> None:
    assert error_of(capsys, *line.split()).startswith(error)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "route",
            "The exit code is 1 if no broker answers, or if an expectation of --expect is not",
        ),
        ("why", "The exit code is 0 if no problem was found. The exit code is 1 if a problem was"),
        ("why queue", "The exit code is 1 if a problem was found, or if the broker cannot answer."),
        (
            "why client",
            "The exit code is 1 if a problem was found, or if the broker cannot answer.",
        ),
        ("why topic", "The exit code is 1 if a problem was found, or if the broker cannot answer."),
    ],
)
def test_the_help_of_a_command_that_checks_says_when_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], command: str, sentence: str
) -> None:
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "") and sentence in " ".join(out.split())


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ("{max-length: 9}", '"{max-length: 9}" is not JSON at character 2, "max-length: 9}"'),
        ("{'max-length': 9}", "is not JSON at character 2, "),
        ('{"max-length": 9,}', "is not JSON at character 1"),
        ('{"max-length": 9', '"{"max-length": 9" is not JSON at its end'),
        ("", '"" is not JSON at its end'),
        ("9", '"9" is JSON, but not an object'),
        ("[]", '"[]" is JSON, but not an object'),
        ("[" * 100_000, "too many levels"),
        ("1" * 10_000, "has a number with too many digits"),
        ('{"x": \x1b[2J}', "is not JSON at character 7, "),
    ],
)
def test_a_definition_of_a_policy_that_is_no_object_names_policy_fault_and_example(
    capsys: pytest.CaptureFixture[str], definition: str, fault: str
) -> None:
    error = error_of(capsys, "policies", "set", "limits", "^q", definition)
    assert error.startswith("policy 'limits': the definition ") and fault in error
    assert error.endswith(""", as in '{"max-length": 1000}'""") and len(error) < 400


def test_an_empty_argument_too_many_is_shown_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, "permissions", "clear", "ann", "")
    assert error.startswith('unknown argument ""; to name a virtual host, use --vhost NAME (see ')


def test_rules_that_only_a_broker_must_obey_are_not_checked_by_a_client(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port())
    # Two listeners of a broker cannot have the same port, and a listener with TLS needs a file.
    monkeypatch.setenv("TRELLIS_AMQP_PORT", port)
    flags = ("--http-tls", "true", "--http-port", port)
    error = error_of(capsys, "list", "queues", *flags, code=1)
    assert error.startswith(f"no answer from https://127.0.0.1:{port} (Connection refused)")
    assert "both have port" in error_of(capsys, "check-config", "--http-port", port)
    error = error_of(capsys, "check-config", "--http-tls", "true", "--amqp-port", "1")
    assert error.startswith("--http-tls: http.tls: HTTPS needs a certificate")


def test_the_nearest_flag_is_one_that_the_command_accepts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, nearest in (
        (["health", "--port", "1"], "--metrics-port"),
        (["list", "queues", "--port", "1"], "--http-port"),
        (["list", "queues", "--ws-prt", "1"], "--sort"),
        (["serve", "--ws-prt", "1"], "--ws-port"),
    ):
        error = error_of(capsys, *words)
        assert f"; the nearest flag is {nearest} (" in error, error


def test_the_help_explains_the_words_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "serve", "--help")
    assert code == 0
    text = " ".join(out.split())
    for explanation in (
        "the silence: the time in seconds without a record of the active node",
        "the lease: the time in seconds for which the active node may serve clients",
        "appends a mark, a record at which a node can begin to read",
    ):
        assert explanation in text


def test_command_error_is_one_line() -> None:
    assert str(CommandError("a\nb")) == "a\\nb"


def test_each_command_is_in_the_module_that_the_table_names() -> None:
    """Check that the table COMMANDS names the module that defines each command.

    `trellis` imports only this module. A command without an entry would be unknown.
    """
    for name in dict.fromkeys(COMMANDS.values()):
        root = Parser(prog="trellis")
        commands = root.add_subparsers(dest="command")
        import_module(f"trellis.cli.{name}").add(commands)
        assert list(commands.choices) == [
            command for command, module in COMMANDS.items() if module == name
        ]
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert set(COMMANDS.values()) <= modules


#: A program whose arguments are names of modules with commands. For each module, it prints the name
#: and the modules of the core that the module's commands import. It makes the parser of each
#: command in a fork of itself, which has imported only the root of all commands.
_IMPORTS = """
import os, sys
from trellis.cli import COMMANDS, parser
for name in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    parser(next(command for command, module in COMMANDS.items() if module == name))
    core = {"broker.broker", "broker.routing.plan", "broker.queues.queue"}
    unneeded = core | {"trellis.cli.bench"} - {f"trellis.cli.{name}"}
    print(name, *sorted(unneeded & set(sys.modules)), flush=True)
    os._exit(0)
"""


#: The work of `doctor` needs the core. `completion` and `man` need all commands.
_WITH_CORE = {"doctor", "completion", "manual"}


def test_a_command_does_not_import_the_broker() -> None:
    """Each command starts fast: it imports no part of the broker's core and no load tool."""
    names = sorted(set(COMMANDS.values()) - _WITH_CORE)
    command = [sys.executable, "-c", _IMPORTS, *names]
    assert subprocess.check_output(command, text=True).split("\n") == [*names, ""]
