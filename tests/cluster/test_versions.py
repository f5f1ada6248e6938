"""Tests of a rolling upgrade to a version that can write batches in a newer format."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.replication.directory import ReplicaDirectory
from broker.replication.formats import Formats, FormatUnread
from broker.replication.owner import LogOwner
from broker.replication.records import BATCH, BatchChunk, decode
from broker.replication.report import NodeReport
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, TIMES, NodeProcess, consume, node_over, publish
from tests.cluster.test_following import Standby, stored
from tests.cluster.test_ownership import QUEUE as DECLARED
from tests.cluster.test_ownership import Owner
from tests.cluster.test_retention import Nodes
from tests.cluster.test_switch import switch
from tests.replication.new_format import LATER, NEXT, PRESENT
from tests.store.simulated import SimulatedDisk
from trellis.app import MISCONFIGURED
from trellis.cluster.clock import wall_ms
from trellis.cluster.format_upgrade import FormatUpgrade
from trellis.server.recovery import codecs


def formats_in(owner: Owner) -> list[int]:
    """Return the format number of each batch in the log of an owner, in order."""
    records = [decode(data) for _, data in owner.log.read(0).records]
    return [one.payload[0] for one in records if isinstance(one, BatchChunk) and one.kind == BATCH]


def upgraded(tmp_path: Path) -> Owner:
    """Return an owner of the next version, with batches of two formats.

    The owner has written a batch of format 1, and then a batch of format 2.
    """
    owner = Owner(tmp_path / "owner")
    owner.ownership.formats = NEXT
    owner.write(DECLARED, stored(b"one"))
    nodes, upgrade = Nodes(), FormatUpgrade("owner", owner.owner, 2, owner.ownership._raise_format)
    reports = {"owner": NodeReport(0, wall=wall_ms(), newest=2)}
    upgrade.look(nodes.durable, reports)
    assert owner.owner.epoch == 1
    nodes.durable = nodes.durable.after(reports, 0)
    upgrade.look(nodes.durable, reports)
    assert (owner.owner.epoch, owner.owner.judge.state.format) == (2, 2)
    owner.write(stored(b"two"))
    assert formats_in(owner) == [1, 2]
    return owner


def test_standby_follows_both_formats_and_takes_over(tmp_path: Path) -> None:
    owner = upgraded(tmp_path)
    standby = Standby(tmp_path / "standby", owner.log, formats=NEXT)
    taken = standby.join()
    assert isinstance(taken, LogOwner) and taken.judge.state.format == 2
    assert standby.contents() == [b"one", b"two"]


def test_older_standby_stops_before_the_first_batch_that_it_cannot_read(tmp_path: Path) -> None:
    owner = upgraded(tmp_path)
    standby = Standby(tmp_path / "standby", owner.log, formats=PRESENT)
    end = standby.join()
    assert isinstance(end, FormatUnread) and "install the version that the other nodes" in str(end)
    assert standby.directory.stored_state.format == 1
    # The directory is as before the upgrade, so the newer version continues with it.
    again = Standby(tmp_path / "standby", owner.log, standby.disk, formats=NEXT)
    assert isinstance(again.join(), LogOwner)
    assert again.contents() == [b"one", b"two"]


@pytest.mark.parametrize(("formats", "number"), [(PRESENT, 2), (LATER, 1)])
def test_directory_of_a_format_that_is_not_read_is_refused(
    tmp_path: Path, formats: Formats, number: int
) -> None:
    owner = Owner(tmp_path / "owner")
    owner.ownership.formats = NEXT
    owner.write(DECLARED)
    if number == 2:
        owner.ownership._raise_format(2)
    standby = Standby(tmp_path / "standby", owner.log, formats=NEXT)
    assert isinstance(standby.join(), LogOwner)
    with pytest.raises(FormatUnread, match=f"has batches of format {number}"):
        ReplicaDirectory(
            SimulatedDisk(), str(tmp_path / "standby"), "broker", codecs(), formats=formats
        )


def start(
    nodes: list[NodeProcess], server: LogServer, directory: Path, version: str = ""
) -> NodeProcess:
    node = node_over(server, directory, TIMES, version)
    nodes.append(node)
    node.wait_for("following")
    return node


def wait_for_version(server: LogServer, node: str, newest: int) -> None:
    """Wait until a standby has reported that `newest` is the newest batch format it reads."""
    end = time.monotonic() + PATIENCE
    while True:
        report = server.log.reports.get(node, NodeReport(0))
        if (report.state, report.newest) == ("following", newest):
            return
        assert time.monotonic() < end, report


@pytest.mark.long
def test_rolling_upgrade_with_a_way_back(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    first.channel().queue_declare(QUEUE, durable=True)
    publish(first.channel(), range(10))

    def restart(node: NodeProcess, directory: str, version: str) -> NodeProcess:
        """Kill a node, and start it again; `version` is "next", or "" for the present version."""
        node.kill()
        again = start(nodes, server, tmp_path / directory, version)
        wait_for_version(server, directory, 2 if version else 1)
        return again

    second = restart(second, "second", "next")
    assert switch(first, "second")[0] == 200
    second.wait_for("ready")
    publish(second.channel(), range(10, 20))
    first = restart(first, "first", "")  # The way back: the older version takes over again.
    assert switch(second, "first")[0] == 200
    first.wait_for("ready")
    publish(first.channel(), range(20, 30))
    second = restart(second, "second", "next")
    assert switch(first, "second")[0] == 200
    second.wait_for("ready")
    publish(second.channel(), range(30, 40))
    assert server.log.reports["first"].format == 1
    first = restart(first, "first", "next")
    end = time.monotonic() + PATIENCE
    while server.log.reports["first"].format != 2:
        assert time.monotonic() < end
    publish(second.channel(), range(40, 50))
    assert "cluster_format_raised format=2 before=1" in second.errors.read_text()

    first.kill()
    late = start(nodes, server, tmp_path / "first")
    assert late.process.wait(PATIENCE) == MISCONFIGURED
    assert "install the version that the other nodes run" in late.errors.read_text()
    first = start(nodes, server, tmp_path / "first", "next")
    second.kill()
    first.wait_for("ready")
    assert consume(first.channel(), 50) == list(range(50))
