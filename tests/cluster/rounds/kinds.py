"""The kinds of faults, by name (KINDS).

Each kind has a function that causes the fault in a World, and returns when the fault is over. A
function returns False if the fault did not happen, for example because a node did not reach the
point of its work at which it shall stop (node.py). A round without its fault does not count.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.broker import environment
from tests.cluster.rounds.world import DEFAULT_TIMES, TIMES, GaveUp, RoundNode, Times, World
from tests.cluster.test_leader_kill import leader_of
from trellis.app import MISCONFIGURED
from trellis.cluster.topic import KafkaTopic

#: Seconds of a pause: shorter than the lease, around the silence, and longer than both.
PAUSES = (0.5, 0.9, 1.2, 1.6, 2.0, 3.0, 6.0)
#: Seconds to wait until a point is reached.
REACHED_SECONDS = 20.0

Fault = Callable[[World, random.Random], bool]


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    `log` is the sort of replicated log that these faults need (the argument `log` of `World`).
    `fault` is the function that causes one fault. `times` are silence, lease and beat of the nodes,
    in seconds.
    """

    log: str
    fault: Fault
    times: Times = TIMES


def pair(world: World) -> tuple[RoundNode, RoundNode]:
    """Return the active node and a standby."""
    active, standby = world.active(), world.standby()
    assert active is not None and standby is not None
    return active, standby


def kill_active(world: World, chance: random.Random) -> bool:
    """Kill the active node, and return True."""
    pair(world)[0].kill()
    return True


def kill_standby(world: World, chance: random.Random) -> bool:
    """Kill the standby while it follows the log, and return True."""
    pair(world)[1].kill()
    return True


def stopping(who: str) -> Fault:
    """Return the fault that suspends (SIGSTOP) nodes for a while and then continues them.

    `who` is `active`, `standby` or `both`.
    """

    def stop(world: World, chance: random.Random) -> bool:
        active, standby = pair(world)
        stopped = {"active": [active], "standby": [standby], "both": [active, standby]}[who]
        for node in stopped:
            node.send(signal.SIGSTOP)
            world.pause(chance.choice((0.0, 0.3)) if who == "both" else 0.0)
        world.pause(chance.choice(PAUSES))
        chance.shuffle(stopped)
        for node in stopped:
            node.send(signal.SIGCONT)
            world.pause(chance.choice((0.0, 0.3)) if who == "both" else 0.0)
        return True

    return stop


def pausing(point: str, who: str) -> Fault:
    """Return the fault that suspends a node for a while at a point of its work (node.py).

    `who` is `active`, `standby` or `successor`: with `successor`, the active node is killed first,
    and the standby that takes over is suspended.
    """

    def pause(world: World, chance: random.Random) -> bool:
        active, standby = pair(world)
        node = active if who == "active" else standby
        node.stop_at(point)
        if who == "successor":
            active.kill()
        try:
            world.wait_for(lambda: node.is_stopped or node.has_ended, REACHED_SECONDS)
        except GaveUp:
            node.forget_point()
            return False
        if node.has_ended:
            return False
        if who == "successor":  # The killed node comes back meanwhile, and may take over.
            world.start(active.name)
        world.pause(chance.choice(PAUSES))
        node.send(signal.SIGCONT)
        return True

    return pause


def cutting(who: str) -> Fault:
    """Return the fault by which the active node or the standby cannot reach the log for a while."""

    def cut(world: World, chance: random.Random) -> bool:
        active, standby = pair(world)
        way = world.servers[(active if who == "active" else standby).name]
        way.moves.clear()
        world.pause(chance.choice(PAUSES))
        way.moves.set()
        return True

    return cut


def filling(who: str) -> Fault:
    """Return the fault by which the disk of the active node or the standby is full for a while."""

    def fill(world: World, chance: random.Random) -> bool:
        active, standby = pair(world)
        node = active if who == "active" else standby
        node.fill_disk()
        world.pause(chance.choice((0.5, 1.2, 3.0, 5.0)))
        node.resume_disk()
        return True

    return fill


def losing(which: str) -> Fault:
    """Return the fault that kills one node of the Kafka cluster, and starts it again.

    `which` is its role: `leader` or `follower` of the log's partition, or `controller`.
    """

    def lose(world: World, chance: random.Random) -> bool:
        kafka, cluster = world.kafka, world.cluster
        assert kafka is not None and cluster is not None
        leader = leader_of(cluster)
        nodes = {"leader": leader, "follower": leader % 3 + 1, "controller": controller(world)}
        node = nodes[which]
        kafka.kill(node)
        world.progress(20)
        kafka.start(node)
        topic = KafkaTopic(cluster)
        world.wait_for(lambda: topic.facts().in_sync == 3)
        return True

    return lose


def controller(world: World) -> int:
    """Return the number of the Kafka node that is the controller, from the files of the nodes."""
    leaders: list[tuple[int, int]] = []
    for node in (1, 2, 3):
        path = world.directory / f"node-{node}" / "data" / "__cluster_metadata-0" / "quorum-state"
        state = json.loads(path.read_text())
        leaders.append((state["leaderEpoch"], state["leaderId"]))
    return max(leaders)[1]


def seed(world: World, chance: random.Random) -> bool:
    """Seed a third node from the active one under load; then kill the active node."""
    active, cluster = pair(world)[0], world.cluster
    assert cluster is not None
    name = f"seeded-{chance.getrandbits(30)}"
    copy = world.directory / name
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trellis", "cluster", "seed", name, str(copy)),
            *("--config", os.devnull, "--data-dir", str(active.directory)),
            *("--cluster-name", cluster.name, "--cluster-servers", cluster.servers),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    wanted = active.metric("batch")
    node = world.start(name)
    world.wait_for(lambda: node.metric("batch") >= wanted or node.has_ended)
    assert not node.has_ended, node.errors.read_text()[-2000:]
    active.kill()
    world.wait_for(lambda: world.active() not in (None, active))
    node.kill()
    del world.nodes[name]
    shutil.rmtree(copy)
    return True


def fresh(world: World, chance: random.Random) -> bool:
    """Start an empty node after the log was trimmed; then kill the active node.

    The empty node must stop with an error that recommends `trellis cluster seed`.
    """
    active = pair(world)[0]
    world.wait_for(lambda: active.metric("trimmed_offset") > 0 or active.has_ended)
    name = f"fresh-{chance.getrandbits(30)}"
    node = world.start(name)
    world.wait_for(lambda: node.has_ended)
    del world.nodes[name]
    assert node.process.returncode == MISCONFIGURED
    assert "trellis cluster seed" in node.errors.read_text()
    _remove(node.directory)
    active.kill()
    return True


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


KINDS: dict[str, Kind] = {
    "kill-active": Kind("kfake", kill_active),
    "kill-standby": Kind("kfake", kill_standby),
    "stop-active": Kind("kfake", stopping("active")),
    "stop-standby": Kind("kfake", stopping("standby")),
    "stop-both": Kind("kfake", stopping("both")),
    "pause-before-claim": Kind("kfake", pausing("claim", "successor")),
    "pause-in-opening": Kind("kfake", pausing("opening", "successor")),
    "pause-before-flush": Kind("kfake", pausing("flush", "active")),
    "pause-after-answer": Kind("kfake", pausing("answer", "active")),
    "pause-between-chunks": Kind("kfake", pausing("chunk", "active")),
    "pause-before-catalog": Kind("kfake", pausing("catalog", "active")),
    "pause-standby-before-catalog": Kind("kfake", pausing("catalog", "standby")),
    "cut-active": Kind("server", cutting("active")),
    "cut-standby": Kind("server", cutting("standby")),
    "full-disk-active": Kind("kfake", filling("active")),
    "full-disk-standby": Kind("kfake", filling("standby")),
    "kafka-leader": Kind("kafka", losing("leader")),
    "kafka-follower": Kind("kafka", losing("follower")),
    "kafka-controller": Kind("kafka", losing("controller")),
    "kafka-leader-default-times": Kind("kafka", losing("leader"), DEFAULT_TIMES),
    "kafka-follower-default-times": Kind("kafka", losing("follower"), DEFAULT_TIMES),
    "kafka-controller-default-times": Kind("kafka", losing("controller"), DEFAULT_TIMES),
    "seed": Kind("kfake", seed),
    "fresh-after-trim": Kind("kfake", fresh),
}
