"""Tests of an active node that is told to stop (SIGTERM) while a planned switch is under way.

The stop waits for the end of the switch, for a limited time, and a second signal ends the wait. The
standby has a silence of 60 s, which no test waits for: it becomes active only by a handover.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, NodeProcess, consume, publish, start
from tests.cluster.test_switch import PATIENT, switch, wait_for_report
from tests.cluster.waiting import wait_for_line
from trellis.app import DONE
from trellis.cluster.membership import FENCED

HASTY = "tests.cluster.hasty_node"


class Switched:
    """An active node, and a standby; an operator orders a switch from the first to the second."""

    def __init__(self, server: LogServer, nodes: list[NodeProcess], directory: Path) -> None:
        self.server, self.nodes, self.directory = server, nodes, directory
        #: The answer to the operator: status and body, or the error of the connection.
        self.answers: SimpleQueue[Any] = SimpleQueue()

    def begin(self, program: str = "tests.cluster.node_process") -> None:
        """Start the nodes, and publish 20 messages."""
        arguments = str(self.server.port), str(self.directory / "first"), "2,1,0.15"
        self.first = NodeProcess(self.directory / "first", program, *arguments)
        self.nodes.append(self.first)
        self.first.wait_for("following")
        self.first.wait_for("ready")
        channel = self.first.channel()
        channel.queue_declare("work", durable=True)
        publish(channel, range(20))
        self.second = start(self.nodes, self.server, self.directory / "second", PATIENT)
        wait_for_report(self.server, "second")

    def order(self) -> None:
        """Order the switch, in a thread."""

        def ask() -> None:
            try:
                self.answers.put(switch(self.first))
            except OSError as error:
                self.answers.put(error)

        threading.Thread(target=ask, daemon=True).start()

    def order_that_waits(self) -> None:
        """Order a switch that waits for the list of the nodes.

        Return when the switch is under way, so that the broker refuses a second order.
        """
        self.server.lists.clear()
        for _ in range(2):
            self.order()
        status, answer = self.answers.get(timeout=PATIENCE)  # The answer to the second order.
        assert (status, answer["reason"]) == (
            409,
            "another switch of this node is under way; wait for its end",
        )

    def order_whose_claim_waits(self) -> None:
        """Order a switch; return while the claim for the standby is on its way to the log."""
        self.server.claims.clear()
        self.order()
        assert self.server.claim_waits.wait(PATIENCE)

    def terminate(self) -> None:
        self.first.process.send_signal(signal.SIGTERM)

    def check_second(self) -> None:
        """Wait until the standby is active, and check that it has all 20 messages."""
        self.second.wait_for("ready")
        assert consume(self.second.channel(), 20) == list(range(20))


@pytest.fixture
def switched(server: LogServer, nodes: list[NodeProcess], tmp_path: Path) -> Switched:
    return Switched(server, nodes, tmp_path)


def test_stop_waits_for_the_switch_that_is_under_way(switched: Switched) -> None:
    switched.begin()
    switched.order_that_waits()
    switched.terminate()
    refused = switch(switched.first)  # The signal was handled before this request.
    assert (refused[0], "this node is stopping" in refused[1]["reason"]) == (409, True)
    switched.server.lists.set()
    assert switched.answers.get(timeout=PATIENCE) == (200, {"to": "second"})
    assert switched.first.process.wait(PATIENCE) == DONE
    assert "cluster_handed_over node=second" in switched.first.log
    assert "cluster_left" not in switched.first.log
    switched.check_second()


@pytest.mark.long
@pytest.mark.parametrize("program", ["tests.cluster.node_process", HASTY])
def test_stop_cancels_a_switch_that_does_not_go_on(switched: Switched, program: str) -> None:
    switched.begin(program)
    switched.order_that_waits()
    switched.terminate()
    if program == HASTY:
        wait_for_line(switched.first, "could not be handed over within 0.3 s")
    else:
        switch(switched.first)
        switched.terminate()
        wait_for_line(
            switched.first, 'cluster_left reason="a second signal ended the handover of the log"'
        )
    wait_for_line(switched.first, "stopped aborted=")
    switched.server.lists.set()
    assert switched.first.process.wait(PATIENCE) == DONE
    assert "cluster_handed_over" not in switched.first.log
    answer = switched.answers.get(timeout=PATIENCE)
    assert isinstance(answer, OSError) or "the log was not handed over" in answer[1]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("program", ["tests.cluster.node_process", HASTY])
def test_stop_ends_the_process_while_the_claim_for_the_standby_is_on_its_way(
    switched: Switched, program: str
) -> None:
    switched.begin(program)
    switched.order_whose_claim_waits()
    switched.terminate()
    if program != HASTY:
        switch(switched.first)
        switched.terminate()
    assert switched.first.process.wait(PATIENCE) == FENCED
    assert "so a standby may own the log" in switched.first.log.splitlines()[-1]
    switched.server.claims.set()
    switched.check_second()


@pytest.mark.long
def test_stop_waits_for_the_claim_for_the_standby(switched: Switched) -> None:
    switched.begin()
    switched.order_whose_claim_waits()
    switched.terminate()
    switch(switched.first)
    switched.server.claims.set()
    assert switched.first.process.wait(PATIENCE) == DONE
    assert switched.answers.get(timeout=PATIENCE) == (200, {"to": "second"})
    switched.check_second()
