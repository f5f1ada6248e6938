"""The commands in the running text of the guides: each is run against a broker.

The indented examples of these pages have tests of their own. The parsers of the commands check the
flags of all commands that any page names.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running
from trellis import cli
from trellis.cli.parsing import CommandError, Parser

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
#: The pages whose commands are run.
PAGES: Final = [
    "start",
    "mqtt-guide",
    "celery-guide",
    "troubleshooting",
    "log-reference",
    "upgrade",
]
#: The words that replace the placeholders of a command.
PLACEHOLDERS: Final = {
    "NAME": "known",
    "USER": "known",
    "CLIENT_ID": "device",
    "QUEUE": "orders",
    "TOPIC": "plant/7/temp",
    "EXCHANGE": "amq.topic",
    "KEY": "orders.new",
}
#: Commands whose NAME is a queue or a client.
NAMES: Final[dict[tuple[str, ...], str]] = {("why", "queue"): "orders", ("why", "client"): "device"}
#: Commands that the test's broker refuses, and words of the reason.
REFUSED: Final[dict[tuple[str, ...], str]] = {
    ("permissions", "set"): "are defined in the settings",
    ("users", "add"): "there is a user known already",
}
#: Commands of which the test reads only the help: they run until Ctrl-C, ask for a password, need a
#: cluster, an archive, Spark, a journal or a file, or work on a data directory that no broker uses.
#: Other tests run them: tests/cluster, tests/archive, tests/pipeline, tests/store, and in this
#: directory test_store_command.py, test_trace_command.py and test_route_command.py.
ONLY_HELP: Final = {
    tuple(words.split())
    for words in (
        *("ask", "bridge", "cluster", "connect", "pipeline", "report", "route --expect", "serve"),
        *("sessions delete", "store", "stream", "tail", "trace", "users change-password"),
    )
}


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of each command in the running text of a page, without `trellis`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    texts = re.findall(r"`(?:\.run/bin/)?trellis ([a-z][^`]*)`", " ".join(text.split("\n")))
    return [shlex.split(re.sub(r"\s+", " ", words)) for words in sorted(set(texts))]


def actions_of(parser: Parser) -> dict[str, Parser]:
    """Return the parsers of the actions of a command by name; {} if the command has no actions."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


def faults_of(words: list[str]) -> list[str]:
    """Return an error text for each word of a named command that the command's parser refuses.

    The flags and their values are checked even if the text names no other arguments. `words` may
    have brackets, alternatives such as `audit|advise`, and placeholders in capitals.
    """
    if words[0] not in cli.COMMANDS:
        return [f"there is no command {words[0]}"]
    parser, rest = cli.parser(words[0]), [word.strip("[]()") for word in words]
    while rest and (actions := actions_of(parser)):
        unknown = [name for name in rest[0].split("|") if name not in actions]
        if unknown:
            optional = rest[0].startswith("-") or rest[0].isupper()
            return [] if optional else [f"`{parser.prog}` has no action {unknown[0]}"]
        parser, rest = actions[rest[0].split("|")[0]], rest[1:]
    return list(faults_of_flags(parser, rest))


def faults_of_flags(parser: Parser, words: list[str]) -> Iterator[str]:
    """Yield an error text for each flag in `words`, and each value, that a parser refuses."""
    actions: dict[str, argparse.Action] = parser._option_string_actions
    for word, following in pairwise([*words, ""]):
        if word == "|":  # The next words belong to another program.
            return
        if not word.startswith("-") or word == "-":
            continue
        flag, equals, value = word.partition("=")
        if flag not in actions:
            yield f"`{parser.prog}` has no flag {flag}"
            continue
        action = actions[flag]
        value = value if equals else following
        if action.nargs != 0 and value and not value.isupper():
            try:
                parser._get_values(action, [value])
            except (argparse.ArgumentError, CommandError) as error:
                yield f"`{parser.prog}` refuses {flag} {value}: {error}"


def is_complete(words: list[str]) -> bool:
    """Return True if the text has a whole command, False if the text only names a command."""
    try:
        cli.parser().parse_args(words)
    except CommandError:
        return False
    return words not in (["route"], ["why"])


def filled_in(words: list[str]) -> list[str]:
    """Return a command with words of the test in place of its placeholders."""
    optional = re.sub(r"\[[^]]*\]", "", shlex.join(words).replace("'", ""))
    named = {**PLACEHOLDERS, "NAME": NAMES.get((words[0], [*words, ""][1]), "known")}
    return [named.get(word, word) for word in shlex.split(optional)]


@pytest.fixture
async def broker(start: Start) -> AsyncIterator[Running]:
    """Start a broker with a queue, a dead letter and an MQTT client."""
    running = await start(**users())
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    await api(running, "PUT", "queues/%2F/failed", {})
    await api(running, "PUT", "queues/%2F/orders", {"arguments": dead})
    await api(running, "POST", "bindings/%2F/e/amq.topic/q/orders", {"routing_key": "orders.new"})
    queues = running.node.broker.vhosts["/"].queues
    client = await running.amqp()
    await client.socket.send(publication("", "orders", b"x"))
    await running.until(lambda: queues["orders"].depth == 1)
    rejected = {"count": 1, "ackmode": "reject_requeue_false"}
    await api(running, "POST", "queues/%2F/orders/get", rejected)
    await running.until(lambda: queues["failed"].depth == 1)
    device = await running.mqtt("device", user="known/known")
    yield running
    device.socket.close()


def test_every_page_names_only_commands_actions_and_flags_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    faults_by_page = {
        page.name: faults
        for page in pages
        if (faults := [fault for words in commands_of(page) for fault in faults_of(words)])
    }
    assert faults_by_page == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("route --expct", "`trellis route` has no flag --expct"),
        ("route --expct=FILE", "`trellis route` has no flag --expct"),
        ("rute --expect FILE", "there is no command rute"),
        ("users ad NAME", "`trellis users` has no action ad"),
        ("ask audit|advize", "`trellis ask` has no action advize"),
        ("why topic TOPIC [--publischer USER]", "`trellis why topic` has no flag --publischer"),
        ("list queues --limit many", "`trellis list` refuses --limit many: "),
    ],
)
def test_a_misspelt_command_action_or_flag_is_found(text: str, fault: str) -> None:
    (first,) = faults_of(text.split())
    assert first.startswith(fault)


@pytest.mark.parametrize(
    "text",
    ["ask audit|advise", "man | man -l -", "list delayed --cancel VHOST:EXCHANGE:ID", "users NAME"],
)
def test_a_part_of_a_command_is_accepted(text: str) -> None:
    assert faults_of(text.split()) == []


@pytest.mark.parametrize("page", PAGES)
async def test_the_commands_in_the_text_of_a_page_work(
    page: str,
    broker: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = Commands(broker, capsys, monkeypatch)
    page_commands = commands_of(DOCS / f"{page}.md")
    assert page_commands
    monkeypatch.setenv("TRELLIS_URL", f"http://127.0.0.1:{broker.port('http')}")
    monkeypatch.setenv("TRELLIS_USER", "admin")
    monkeypatch.setenv("TRELLIS_PASSWORD", "known")
    for words in page_commands:
        given = filled_in(words)
        if any(tuple(words[: len(key)]) == key for key in ONLY_HELP) or not is_complete(given):
            named = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)][:2]
            assert (await helped(commands, named)).startswith("usage: trellis "), words
            continue
        more = ["--yes"] if "--yes" in await helped(commands, given[:2]) else []
        if words[0] == "health":
            more = ["--metrics-port", str(broker.port("metrics"))]
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        code, out, err = await commands.run_alone(*given, *more)
        found_problem = words[0] == "why" and code == 1 and out != ""
        reason = REFUSED.get(tuple(words[:2]))
        assert found_problem or (code == 0 if reason is None else reason in err), (words, err)


async def helped(commands: Commands, words: list[str]) -> str:
    """Return the help of the longest beginning of `words` that is a command."""
    for count in range(len(words), 0, -1):
        code, out, _ = await commands.run_alone(*words[:count], "--help")
        if code == 0:
            return out
    return ""
