"""The performance targets of Trellis in comparison with other brokers, checked against a run.

Each target compares the cost of one workload on Trellis with its cost on one peer. If the peer is a
broker, the peer must cost at least `least` times as much as Trellis. If the peer is a lower bound
(a program that only sends or receives bytes), Trellis may cost at most `most` times as much.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from peers.results import Results, ratio


class Goal(NamedTuple):
    """A target for one figure of Trellis in one workload, compared with the same figure of a peer.

    `figure` names a field of Figures. If `least` is set, the peer's figure must be at least `least`
    times that of Trellis. If `most` is set, the figure of Trellis must be at most `most` times that
    of the peer.
    """

    workload: str
    peer: str
    least: float = 0.0
    most: float = 0.0
    figure: str = "cpu"


GOALS: Final = (
    Goal("mqtt-qos0", "mosquitto", 30),
    Goal("mqtt-qos1", "mosquitto", 15),
    Goal("mqtt-fan10", "mosquitto", 60),
    Goal("mqtt-50pub", "mosquitto", 1.5),
    Goal("amqp-auto", "rabbitmq", 50),
    Goal("amqp-ack", "rabbitmq", 50),
    Goal("amqp-fan10", "rabbitmq", 50),
    Goal("amqp-durable", "rabbitmq", 10),
    Goal("amqp-50pub", "rabbitmq", 6),
    Goal("amqp-pingpong", "rabbitmq", 3),
    Goal("mqtt-qos0", "relay", most=5),
    Goal("amqp-auto", "relay", most=10),
    Goal("mqtt-fan1000", "writer", most=1.25),
    Goal("mqtt-fan10000", "writer", most=1.25),
    Goal("mqtt-qos0-half", "mosquitto", 1, figure="p99"),
    Goal("mqtt-qos1-half", "mosquitto", 1, figure="p99"),
    Goal("mqtt-fan10-half", "mosquitto", 1, figure="p99"),
)
_WORDS: Final = {"cpu": "CPU a message", "p99": "p99 of the latency"}


def lines(results: Results, ours: str) -> list[list[str]]:
    """Return table rows (workload, comparison, target, measured) of the measured targets.

    `ours` is the name of Trellis among the peers of the run.
    """
    return [line for goal in GOALS if (line := _line(results, ours, goal))]


def _line(results: Results, ours: str, goal: Goal) -> list[str]:
    theirs, mine = results.median(goal.peer, goal.workload), results.median(ours, goal.workload)
    factor = ratio(getattr(theirs, goal.figure, None), getattr(mine, goal.figure, None))
    if factor is None:
        return []
    title = results.peers[goal.peer].title
    if goal.most:
        wanted, shown, met = (
            f"at most {goal.most:g} × {title}",
            f"{1 / factor:.2f} ×",
            1 / factor <= goal.most,
        )
    else:
        wanted, shown, met = (
            f"{title} at least {goal.least:g} ×",
            f"{factor:.1f} ×",
            factor >= goal.least,
        )
    return [
        f"`{goal.workload}`",
        _WORDS[goal.figure],
        wanted,
        shown if met else f"**{shown}, missed**",
    ]
