"""A planned switch: the active node hands the log over to a standby."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from pika.exceptions import AMQPError

from broker.replication.errors import ReplicationError
from broker.replication.report import NodeReport
from tests.broker import run_command
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, consume, publish, start
from tests.cluster.waiting import wait_for, wait_for_line
from tests.top.commands import UNASKED
from trellis.app import DONE
from trellis.cluster.membership import FENCED
from trellis.cluster.succession import BATCHES_MAX, REPORT_AGE_MAX, successor

#: Silence, lease and beat in seconds. After a silence of 60 s a standby would take over by itself,
#: which no test waits for.
PATIENT = "60,20,0.15"


def switch(node: NodeProcess, to: str = "", user: str = "guest:guest") -> tuple[int, Any]:
    """Ask a node over HTTP to hand the log over to the node `to`, or to any standby ("").

    Return the HTTP status and the decoded answer. `user` is NAME:PASSWORD.
    """
    request = urllib.request.Request(
        f"http://{node.addresses['http']}/api/trellis/cluster/switch",
        json.dumps({"to": to}).encode(),
        {
            "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
            "Content-Type": "application/json",
        },
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_command_names_the_connections_that_are_closed(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, second = pair(nodes, server, tmp_path)
    channel = first.channel()
    words = ("cluster", "switch", "--url", f"http://{first.addresses['http']}", "--config")
    login = ("--user", "guest", "--password", "guest")
    done = run_command(*words, os.devnull, *login)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == (
        "node 'first' will hand the log of the cluster over to the standby that has most of the "
        "log, and will end its process\n"
        f"2 open connections will be closed; the clients must connect again\n{UNASKED}"
    )
    publish(channel, range(1))  # The node is active, and the connection open.
    done = run_command(*words, os.devnull, *login, "second", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "handed the log of the cluster over to node 'second'\n",
        "",
    )
    second.wait_for("ready")


def wait_for_report(server: LogServer, node: str) -> None:
    wait_for(lambda: server.log.reports.get(node, NodeReport(0)).state == "following")


def pair(
    nodes: list[NodeProcess], server: LogServer, tmp_path: Path
) -> tuple[NodeProcess, NodeProcess]:
    """Return an active node with a queue, and a standby."""
    first = start(nodes, server, tmp_path / "first", "2,1,0.15")
    first.wait_for("ready")
    first.channel().queue_declare(QUEUE, durable=True)
    second = start(nodes, server, tmp_path / "second", PATIENT)
    wait_for_report(server, "second")
    return first, second


@pytest.mark.parametrize("to", [pytest.param("", marks=pytest.mark.long), "second"])
def test_switch_keeps_all_confirmed_messages_and_needs_no_silence(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path, to: str
) -> None:
    first, second = pair(nodes, server, tmp_path)
    channel, confirmed, broken = first.channel(), list[int](), threading.Event()

    def keep_publishing() -> None:
        number = 0
        try:
            while True:
                publish(channel, range(number, number + 1))
                confirmed.append(number)
                number += 1
        except AMQPError:
            broken.set()

    thread = threading.Thread(target=keep_publishing, daemon=True)
    thread.start()
    while len(confirmed) < 200:
        assert not broken.is_set()
    assert switch(first, to) == (200, {"to": "second"})
    assert first.process.wait(PATIENCE) == FENCED
    assert "handed over to node 'second'" in first.errors.read_text()
    second.wait_for("ready")
    assert broken.wait(PATIENCE)
    again = second.channel()
    count = again.queue_declare(QUEUE, durable=True, passive=True).method.message_count
    assert len(confirmed) <= count <= len(confirmed) + 1
    assert consume(again, len(confirmed)) == confirmed


@pytest.mark.long
def test_switch_goes_on_when_the_gateway_ends(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, second = pair(nodes, server, tmp_path)
    answers = SimpleQueue[Any]()

    def ask() -> None:
        try:
            answers.put(switch(first))
        except OSError as error:
            answers.put(error)

    server.lists.clear()
    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()
    status, answer = answers.get(timeout=PATIENCE)
    assert (status, answer["reason"]) == (
        409,
        "another switch of this node is under way; wait for its end",
    )
    os.kill(gateway_of(first), signal.SIGKILL)
    assert isinstance(answers.get(timeout=PATIENCE), OSError)
    wait_for_line(first, "http_gateway_lost")
    server.lists.set()
    assert first.process.wait(PATIENCE) == FENCED
    second.wait_for("ready")


def gateway_of(node: NodeProcess) -> int:
    """Return the process id of a node's HTTP gateway.

    The gateway is the only other process whose error output is the node's. It need not be a child
    of the node's process (tests/forks.py).
    """
    processes = set()
    for stream in Path("/proc").glob("[0-9]*/fd/2"):
        with contextlib.suppress(OSError):  # The process has ended.
            if stream.readlink() == node.errors:
                processes.add(int(stream.parent.parent.name))
    (gateway,) = processes - {node.process.pid}
    return gateway


def test_node_that_stops_hands_the_log_over(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, second = pair(nodes, server, tmp_path)
    publish(first.channel(), range(50))
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(PATIENCE) == DONE
    second.wait_for("ready")
    assert consume(second.channel(), 50) == list(range(50))
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(PATIENCE) == DONE
    assert "no standby can take over" in second.errors.read_text()


@pytest.mark.long
def test_switch_back_and_forth(server: LogServer, nodes: list[NodeProcess], tmp_path: Path) -> None:
    first, second = pair(nodes, server, tmp_path)
    publish(first.channel(), range(10))
    assert switch(first)[0] == 200
    assert first.process.wait(PATIENCE) == FENCED
    second.wait_for("ready")
    publish(second.channel(), range(10, 20))
    back = start(nodes, server, tmp_path / "first", PATIENT)
    wait_for_report(server, "first")
    assert switch(second, "first") == (200, {"to": "first"})
    back.wait_for("ready")
    assert consume(back.channel(), 20) == list(range(20))


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("first", "is the active node already"),
        ("third", "has not reported"),
        ("", "no standby can take over"),
    ],
)
def test_refused_switch_changes_nothing(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path, to: str, text: str
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    status, answer = switch(first, to)
    assert (status, text in answer["reason"]) == (409, True)
    publish(channel, range(10))
    assert first.health("/readyz") == 200


@pytest.mark.long
def test_node_to_which_the_log_was_handed_over_and_that_died_is_replaced_by_the_former_owner(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, second = pair(nodes, server, tmp_path)
    publish(first.channel(), range(10))
    second.process.send_signal(signal.SIGSTOP)
    assert switch(first)[0] == 200
    assert first.process.wait(PATIENCE) == FENCED
    second.kill()
    back = start(nodes, server, tmp_path / "first", "1.0,0.7,0.15")
    back.wait_for("ready")
    assert consume(back.channel(), 10) == list(range(10))


NOW = 1_700_000_000_000
READY = NodeReport(9, "1.0", "following", 1, 100, NOW, 7)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (NodeReport(9, state="active", batch=100, wall=NOW, nonce=7), "must be 'following'"),
        (
            NodeReport(9, state="following", batch=100, wall=NOW),
            "the last report of node 'other' offers no handover",
        ),
        (
            NodeReport(9, "", "following", 1, 100, NOW - int(1_000 * REPORT_AGE_MAX) - 1, 7),
            "the last report of node 'other'",
        ),
        (NodeReport(9, "", "following", 1, 99, NOW, 7), "lacks 50001 batches"),
        (
            NodeReport(9, state="blocked", batch=100, wall=NOW, nonce=7),
            "is in the state 'blocked', but must be",
        ),
    ],
)
def test_node_that_cannot_take_over_at_once_is_no_successor(report: NodeReport, text: str) -> None:
    batch = 100 + BATCHES_MAX
    with pytest.raises(ReplicationError, match=text):
        successor({"other": report, "ready": READY}, "owner", batch, NOW, "other")
    chosen = successor({"other": report, "ready": READY}, "owner", batch, NOW)
    assert chosen == ("ready", READY)


def test_owner_that_cannot_write_its_disk_chooses_a_node_with_all_batches() -> None:
    with pytest.raises(ReplicationError, match=r"\(node 'ready' lacks 1 batches: .*\): start a st"):
        successor({"ready": READY}, "owner", 101, NOW, lacking_most=0)
    assert successor({"ready": READY}, "owner", 100, NOW, lacking_most=0) == ("ready", READY)
    with pytest.raises(ReplicationError, match="no other node has reported"):
        successor({"owner": READY}, "owner", 100, NOW, lacking_most=0)
