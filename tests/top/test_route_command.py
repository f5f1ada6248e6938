"""`trellis route` against a broker process and on a definitions file, as docs/troubleshooting.md
shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker import BrokerProcess, run_command
from trellis.cli.route import LIMIT

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "troubleshooting.md").read_text()
#: (command, output) pairs of docs/troubleshooting.md; test_trace_command.py has those of `trace`.
EXAMPLES: Final = re.findall(
    r"^    \.run/bin/trellis (?!trace)(.+)\n\n((?:(?:    .*)?\n)+)", PAGE, re.MULTILINE
)


def block(kind: str) -> str:
    """Return the only fenced block of this kind in docs/troubleshooting.md."""
    (content,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(content)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory with the files of docs/troubleshooting.md."""
    path = tmp_path_factory.mktemp("route")
    (path / "definitions.json").write_text(block("json"))
    (path / "routes.toml").write_text(block("toml"))
    return path


def trellis(directory: Path, *arguments: str, port: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a command of trellis in a directory; `port` is the HTTP port of the broker."""
    return run_command(*arguments, directory=directory, HTTP_PORT=port)


@pytest.fixture(scope="module")
def port(directory: Path) -> Iterator[int]:
    """Start a broker with the definitions of docs/troubleshooting.md; return its HTTP port."""
    broker = BrokerProcess()
    http = broker.addresses["http"].port
    assert (
        trellis(directory, "definitions", "import", "definitions.json", port=http).returncode == 0
    )
    yield http
    broker.stop()


def test_the_page_begins_with_a_command() -> None:
    assert PAGE.split("\n\n")[1].startswith("    .run/bin/trellis route ")
    assert len(EXAMPLES) == PAGE.count("\n    .run/bin/trellis ") - 2  # Two others are `trace`.


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[one[0] for one in EXAMPLES])
def test_a_command_of_the_page_prints_what_the_page_shows(
    directory: Path, port: int, command: str, output: str
) -> None:
    done = trellis(directory, *shlex.split(command), port=port)
    shown = "\n".join(line[4:] for line in output.rstrip("\n").split("\n"))
    assert (done.stdout, done.stderr) == (shown + "\n", "")
    problem = "FAILED" in output or re.search("^    - ", output, re.MULTILINE)
    assert done.returncode == (1 if problem else 0)


@pytest.mark.parametrize(
    "question",
    [
        ["sensors", "sensors.kitchen.temp"],
        ["sensors", "Sensors.kitchen.temp"],
        ["amq.default", "temps"],
        ["amq.headers", "", "--header", "type=report", "--header", "pages=4"],
        ["sensors", "sensors.cellar.temp", "--publisher", "ann"],
        ["--mqtt", "sensors/kitchen/temp"],
    ],
    ids=" ".join,
)
def test_a_definitions_file_gives_the_answer_of_the_broker(
    directory: Path, port: int, question: list[str]
) -> None:
    live = trellis(directory, "route", *question, "--json", port=port)
    offline = trellis(directory, "route", *question, "--json", "--definitions", "definitions.json")
    assert (live.returncode, offline.returncode) == (0, 0)

    def comparable(text: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(text)
        answer["bindings"].sort(key=lambda row: (row["exchange"], row["destination"]))
        answer["queues"].sort(key=lambda row: str(row["name"]))
        answer["near_misses"].sort(key=lambda row: str(row["destination"]))
        return answer

    assert comparable(live.stdout) == comparable(offline.stdout)


EXPECTATIONS: Final = [
    {"exchange": "sensors", "key": "sensors.kitchen.temp", "queues": ["temps"]},
    {"exchange": "none", "key": "a", "queues": ["temps"], "name": "unknown"},
    {"exchange": "sensors", "key": "sensors.a.temp", "not_queues": ["log"]},
    {"exchange": "sensors", "key": "sensors.a", "queues": ["temps"]},
    {"mqtt": "a/b", "queues": ["temps"], "user": "ann"},
    {"exchange": "amq.direct", "key": "a", "queues": ["temps"]},
    {
        "exchange": "amq.headers",
        "headers": {"type": "report", "pages": 4},
        "queues": ["reports"],
        "not_queues": ["log"],
    },
]


@pytest.mark.parametrize("live", [True, False])
def test_each_expectation_has_a_line_and_one_that_fails_gives_exit_code_1(
    directory: Path, port: int, live: bool
) -> None:
    (directory / "routes.json").write_text(json.dumps({"expect": EXPECTATIONS}))
    source = [] if live else ["--definitions", "definitions.json"]
    done = trellis(directory, "route", "--expect", "routes.json", *source, port=port)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split()[0] for line in lines] == ["ok", *["FAILED"] * 5, "ok"]
    for line, reason in zip(
        lines[1:6],
        [
            "unknown: exchange 'none', key 'a': no exchange 'none' in vhost '/'",
            "queue 'log' receives the message: binding '' of exchange 'archive'",
            "'sensors' -> queue 'temps': the binding would match if the routing key had one more",
            "queue 'temps' does not receive the message: write access to exchange 'amq.topic'",
            "queue 'temps' does not receive the message: no binding to this queue matches",
        ],
        strict=True,
    ):
        assert reason in line
    done = trellis(directory, "route", "--expect", "routes.json", "--json", *source, port=port)
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and len(rows) == len(EXPECTATIONS)
    assert [row["passed"] for row in rows] == [not row["problems"] for row in rows]
    assert any(row["passed"] for row in rows) and not all(row["passed"] for row in rows)
    (directory / "passing.json").write_text(json.dumps({"expect": EXPECTATIONS[:1]}))
    assert (
        trellis(directory, "route", "--expect", "passing.json", *source, port=port).returncode == 0
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["route"], "give EXCHANGE and KEY, or --mqtt TOPIC, or --expect FILE"),
        (["route", "sensors"], "give EXCHANGE and KEY, or --mqtt TOPIC, or --expect FILE"),
        (["route", "sensors", "a", "--mqtt", "b"], "give EXCHANGE and KEY"),
        (["route", "a", "b", "--header", "c"], "--header: header 'c' must have the form"),
        (["route", "--expect", "none.toml"], "cannot read none.toml"),
        (["route", "--expect", "bad.toml", "--publisher", "ann"], "--expect cannot be combined"),
        (["route", "--expect", "bad.toml"], "fields of an expectation are exchange, key,"),
        (
            ["route", "--expect", "empty.toml"],
            "an expectation needs at least one queue in `queues`",
        ),
        (["route", "a", "b", "--definitions", "none.json"], "cannot read none.json"),
    ],
)
def test_wrong_arguments_give_exit_code_2(
    directory: Path, arguments: list[str], error: str
) -> None:
    (directory / "bad.toml").write_text('[[expect]]\nexchange = "a"\nqeues = ["b"]\n')
    (directory / "empty.toml").write_text('[[expect]]\nexchange = "bad"\n')
    done = trellis(directory, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr and done.stderr.count("\n") == 1


def test_user_is_the_user_that_logs_in_and_publisher_the_user_whose_rights_are_checked(
    directory: Path, port: int
) -> None:
    question = ("route", "sensors", "sensors.cellar.temp")
    by_publisher = trellis(directory, *question, "--publisher", "ann", port=port)
    assert "refused for user 'ann'" in by_publisher.stdout
    for flag in ("--user", "--login"):
        by_login = trellis(directory, *question, flag, "guest", "--password", "guest", port=port)
        assert by_login.returncode == 0 and "for user" not in by_login.stdout


@pytest.mark.parametrize("question", [("route", "sensors", "a"), ("why", "topic", "a")])
def test_the_error_of_a_wrong_login_names_the_flag_whose_user_is_checked(
    directory: Path, port: int, question: tuple[str, ...]
) -> None:
    hint = "; --user is the user that logs in: to check the rights of ann, give --publisher ann\n"
    unknown = trellis(directory, *question, "--user", "ann", port=port)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("trellis: no password for user ann; give --password, ")
    assert unknown.stderr.endswith(hint)
    refused = trellis(directory, *question, "--user", "ann", "--password", "no", port=port)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert " refused user ann (" in refused.stderr
    assert "; give --user and --password, or set TRELLIS_USER and TRELLIS_" in refused.stderr
    assert refused.stderr.endswith(hint)
    # An operator whose settings define the user hardly meant this user as the publisher, so the
    # error does not propose --publisher.
    refused = run_command(*question, directory=directory, HTTP_PORT=port, USER="ann", PASSWORD="no")
    assert " refused user ann (" in refused.stderr and "--publisher" not in refused.stderr


def test_a_command_without_a_publisher_names_only_the_flags_of_the_login(
    directory: Path, port: int
) -> None:
    error = trellis(directory, "why", "queue", "q", "--user", "ann", port=port).stderr
    assert error.startswith("trellis: no password for user ann") and "--publisher" not in error


def test_a_login_for_a_definitions_file_is_refused(directory: Path) -> None:
    source = ("--definitions", "definitions.json")
    done = trellis(directory, "route", "sensors", "a", *source, "--user", "ann")
    assert done.returncode == 2
    assert done.stderr == (
        "trellis: --definitions asks no broker, so --user has no effect: leave --user out; --user "
        "is the user that logs in: to check the rights of ann, give --publisher ann\n"
    )


def test_a_broker_that_does_not_answer_is_no_failed_expectation(directory: Path) -> None:
    done = trellis(directory, "route", "--expect", "routes.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("trellis: no answer from")


def test_objects_that_a_definitions_file_cannot_import_are_counted(directory: Path) -> None:
    document = json.loads(block("json"))
    document["queues"].append({"name": "mqtt-subscription-aqos1", "vhost": "/"})
    (directory / "more.json").write_text(json.dumps(document))
    done = trellis(directory, "route", "amq.default", "log", "--definitions", "more.json")
    assert done.stderr == (
        "note: 1 object of more.json cannot be imported; see `trellis doctor more.json`\n"
    )
    assert "queue 'log' takes the message" in done.stdout


def test_an_answer_as_json_has_the_limit_of_the_text_and_all_prints_everything(
    directory: Path,
) -> None:
    names = [f"q{number}" for number in range(LIMIT + 3)]
    document = {
        "exchanges": [{"name": "x", "vhost": "/", "type": "fanout"}],
        "queues": [{"name": name, "vhost": "/"} for name in names],
        "bindings": [
            {"source": "x", "vhost": "/", "destination": name, "routing_key": ""} for name in names
        ],
    }
    (directory / "many.json").write_text(json.dumps(document))
    words = ("route", "x", "k", "--definitions", "many.json")
    answer = json.loads(trellis(directory, *words, "--json").stdout)
    assert len(answer["bindings"]) == len(answer["queues"]) == LIMIT
    # The numbers of all bindings and queues show how many are left out.
    assert answer["exchanges"][0]["matched"] == answer["verdicts"]["takes"] == LIMIT + 3
    for flags in (("--all",), ("--limit", "0"), ("--all", "--limit", "0")):
        answer = json.loads(trellis(directory, *words, "--json", *flags).stdout)
        assert len(answer["bindings"]) == len(answer["queues"]) == LIMIT + 3
    assert "... and 3 more bindings (--all prints all)" in trellis(directory, *words).stdout
    done = trellis(directory, *words, "--all", "--limit", "5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--limit N contradicts --all" in done.stderr
