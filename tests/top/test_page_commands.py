"""Each action of the web page shows a command line that `trellis` accepts.

Node.js runs the page's own modules against a broker (page_walk.mjs) and carries out every action.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest

from tests.clients import mqtt_publish, publication
from tests.foreign import require
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running
from trellis.cli import parser
from trellis.http.gateway.web_page import FILES

DRIVER: Final = Path(__file__).parent / "page_walk.mjs"
#: The command that each action of a view shows; PEER stands for an address. The action "" is the
#: view itself.
EXPECTED: Final = {
    "now": {"": "health"},
    "queues": {
        "": "list queues --sort messages_ready --reverse --limit 50",
        "name": "list queues --sort name --limit 50",
        "vhost": "list queues --sort vhost --reverse --limit 50",
        "type": "list queues --sort kind --reverse --limit 50",
        "ready": "list queues --sort messages_ready --limit 50",
        "unacknowledged": "list queues --sort messages_unacknowledged --reverse --limit 50",
        "first message waits": "list queues --sort head_age_ms --reverse --limit 50",
        "consumers": "list queues --sort consumers --reverse --limit 50",
        "Next": "list queues --sort messages_ready --reverse --limit 100",
        "Previous": "list queues --sort messages_ready --reverse --limit 50",
        "field Filter queues by name": "list queues --filter 'name=*ord*' --sort messages_ready "
        "--reverse --limit 50",
    },
    "queue": {
        "": "why queue orders",
        "Look at the first messages": "peek orders --count 10",
        "Ten more": "peek orders --count 10 --after 10 --hex",
        "field as": "peek orders --count 10 --hex",
        "Redrive dead letters…": "redrive orders",
        "Move…": "move orders --to later",
        "Pause": "pause orders",
        "Resume": "resume orders",
        "Purge…": "purge orders",
    },
    "topics": {
        "": "retained list '#'",
        "Show": "retained list 'plant/#'",
        "Watch live": "tail --mqtt 'plant/#'",
        "Stop": "tail --mqtt 'plant/#'",
        "Remove retained messages…": "retained clear 'plant/#'",
        "Publish": "publish --mqtt plant/7/temp --body 21 --retain",
    },
    "clients": {
        "": "list connections --sort since --reverse --limit 50",
        "name": "list connections --sort peer --limit 50",
        "user": "list connections --sort user --reverse --limit 50",
        "protocol": "list connections --sort protocol --reverse --limit 50",
        "state": "list connections --sort state --reverse --limit 50",
        "received": "list connections --sort octets_in --reverse --limit 50",
        "sent": "list connections --sort octets_out --reverse --limit 50",
        "unsent": "list connections --sort unsent --reverse --limit 50",
        "since": "list connections --sort since --limit 50",
        "field Filter connections by name": "list connections --filter 'peer=*127*' --sort since "
        "--reverse --limit 50",
        "client identifier": "list sessions --sort client_id --limit 50",
        "vhost": "list sessions --sort vhost --reverse --limit 50",
        "connected": "list sessions --sort connected --reverse --limit 50",
        "subscriptions": "list sessions --sort subscriptions --reverse --limit 50",
        "waiting": "list sessions --sort queued --limit 50",
        "in flight": "list sessions --sort in_flight --reverse --limit 50",
        "dropped": "list sessions --sort dropped --reverse --limit 50",
        "field Filter sessions by name": "list sessions --filter 'client_id=*dev*' --sort queued "
        "--reverse --limit 50",
    },
    "client": {
        "": "why client device",
        "Close…": "close 'PEER -> mqtt'",
        "Delete the session…": "sessions delete device",
    },
    "routing": {
        "": "list bindings --filter 'source!=' --limit 60",
        "field vhost": "list bindings --filter 'source!=' --limit 60",
        "Explain": "route --mqtt plant/7/temp",
        "Try without the binding plant.# → queue orders": "route --remove amq.topic 'plant.#' "
        "orders",
        "Add to the trial": "route --remove amq.topic 'plant.#' later",
        "Try it": "route --remove amq.topic 'plant.#' orders",
        "Remove from the trial": "list bindings --filter 'source!=' --limit 60",
    },
    "access": {
        "": "permissions list",
        "Check": "route --mqtt plant/7/temp --publisher admin",
        "List": "permissions readers 'plant/#'",
        "name": "list users --sort name --reverse --limit 50",
        "role": "list users --sort role --reverse --limit 50",
        "field Filter users by name": "list users --filter 'name=*adm*' --sort name --limit 50",
    },
    "streams": {"": "stream list"},
    "stream": {
        "": "stream head rows --from 10 --count 50",
        "Read": "stream head rows --since 2001-01-01T00:00:00.000Z --count 50",
        "Next rows": "stream head rows --from 60 --count 50",
        "Tail": "stream head rows --from 40 --follow",
        "Stop": "stream head rows --from 40 --follow",
        "Arrow file": "stream export rows rows-0.arrows --from 0 --to 60",
        "Replay…": "replay rows --from 0 --to 60",
        "field from offset": "replay rows --from 0 --to 120",
        "field to (not included)": "replay rows --from 0 --to 120",
        "field exchange": "replay rows --from 0 --to 120",
    },
    "node": {
        "": "definitions export definitions.json",
        "Read again": "list log --filter log --limit 200",
        "field level, and above": "list log --filter 'level!=debug' --filter 'level!=info' "
        "--filter 'level!=warning' --filter log --limit 200",
        "field with the text": "list log --filter log --limit 200",
        "field with the name": "list settings --filter 'name=*http*' --filter 'source!=default'",
        "field also settings with their defaults": "list settings --filter 'name=*http*'",
        "Import…": "definitions import definitions.json",
    },
    "find": {"": "list retained --filter 'topic=*plant*'"},
}
#: The further commands of the view that finds objects.
FOUND: Final = (
    "list bindings --filter 'routing_key=*plant*'",
    "list consumers --filter 'consumer_tag=*plant*'",
    "list topics --filter 'routing_key=*plant*'",
    "roles list",
)


@pytest.fixture
async def broker(start: Start, tmp_path: Path) -> Running:
    """Start a broker with objects of each kind that the page shows."""
    running = await start(**users(), data={"dir": str(tmp_path / "data")})
    for name in ("orders", "later"):
        await api(running, "PUT", f"queues/%2F/{name}", {"durable": True})
    for number in range(60):  # More than one page of queues.
        running.node.broker.vhosts["/"].declare_queue(f"q{number}")
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    await api(running, "PUT", "queues/%2F/rows", stream)
    await api(running, "POST", "bindings/%2F/e/amq.topic/q/orders", {"routing_key": "plant.#"})
    await api(running, "PUT", "roles/plant", {"vhosts": {}})
    client = await running.amqp()
    for key, count in (("orders", 12), ("rows", 60)):
        await client.socket.send(publication("", key, b"x") * count)
        queue = running.node.broker.vhosts["/"].queues[key]
        await running.until(functools.partial(lambda one, depth: one.depth == depth, queue, count))
    return running


async def walk(broker: Running) -> list[dict[str, Any]]:
    """Carry out each action of the page; return its view and label, and the commands shown."""
    node = require("node")
    reader = await broker.amqp("admin", "known")
    await reader.call(
        spec.Basic.Consume(queue="later", consumer_tag="plant-reader"), spec.Basic.ConsumeOk
    )
    device = await broker.mqtt("device", user="admin/known", clean=False)
    await device.subscribe("plant/#", 1)
    await device.socket.send(mqtt_publish("plant/7/temp", b"21", flags=1))
    await broker.until(lambda: len(broker.node.broker.vhosts["/"].retained) == 1)
    url = f"http://127.0.0.1:{broker.port('http')}"
    login = f"Basic {base64.b64encode(b'admin:known').decode()}"
    process = await asyncio.create_subprocess_exec(
        *(node, "--experimental-default-type=module", str(DRIVER), url, login, str(FILES)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


def test_each_button_of_the_page_has_an_expected_command() -> None:
    """Check that EXPECTED names a command for each button in the sources of the page.

    A long test clicks the buttons, and compares the shown commands with EXPECTED.
    """
    source = "\n".join(path.read_text() for path in FILES.glob("*.js"))
    labels = set(re.findall(r"el\('button', .*?\}, '([^']+)'\)", source))
    assert len(labels) > 20
    # Three buttons send no request that has a command: they log in, log out, or answer a question.
    labels -= {"Log in", "Log out", "Cancel"}
    assert labels <= {action for actions in EXPECTED.values() for action in actions}


@pytest.mark.long
async def test_each_action_of_the_page_shows_its_command(broker: Running) -> None:
    rows = await walk(broker)
    shown = {(row["view"], row["action"]): {*row["inDialog"], *row["shown"]} for row in rows}
    expected = {(view, one): text for view, own in EXPECTED.items() for one, text in own.items()}
    assert shown.keys() == expected.keys()
    lines: set[str] = set()
    for action, commands in shown.items():
        parts = {part for line in commands for part in line.split("; ")}
        lines |= parts
        known = {re.sub(r"127\.0\.0\.1:\d+", "PEER", part) for part in parts}
        assert f"trellis {expected[action]}" in known, (action, known)
    assert {f"trellis {text}" for text in FOUND} <= shown["find", ""]
    columns: dict[str, set[str]] = {}
    for line in sorted(lines):
        words = shlex.split(line)
        assert words[0] == "trellis"
        arguments = parser(words[1]).parse(words[1:])
        if words[1] == "list":
            if arguments.kind not in columns:
                rows = (await api(broker, "GET", f"trellis/{arguments.kind}"))[1]
                columns[arguments.kind] = set().union(*rows)
            known = columns[arguments.kind]
            for text in [arguments.sort, *arguments.filter]:
                if known and text is not None and condition_of_column(text):
                    assert condition_of_column(text) in known, line


def condition_of_column(text: str) -> str:
    """Return the column in a value of --sort or --filter; "" for a word that rows contain."""
    match = re.fullmatch(r"([a-z_]+)(?:(?:!=|=).*)?", text)
    return "" if match is None or text == "log" else match[1]
