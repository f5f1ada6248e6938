"""Tests of QoS 2 between paho-mqtt clients whose broker is killed, with all packets recorded."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from random import Random

import paho.mqtt.client as paho
import pytest

from tests.careful_paho import CarefulClient
from tests.crash.exchanges import Exchanges
from tests.crash.paho_kills import MESSAGES, PUBLISHER, SUBSCRIBER, RepeatedKills
from tests.crash.relay import PUBCOMP, PUBLISH, PUBREC, PUBREL, Recorded

#: Number of times that a broker is killed; TRELLIS_CRASH_LIVES overrides it.
KILLS = 10


def run(directory: Path, level: int, patient: bool, kind: type[paho.Client]) -> RepeatedKills:
    """Kill a broker repeatedly, check each message, and return the completed scenario.

    An error gets a note with the seed, and with the path of a file that has all packets.
    """
    # paho waits with select(), which accepts only file descriptors below 1,024. The logs that
    # earlier tests damaged stay open until their objects are collected.
    gc.collect()
    seed = int(os.environ.get("TRELLIS_CRASH_SEED") or Random().randrange(1 << 32))
    scenario = RepeatedKills(directory / "data", seed, level, patient, kind)
    try:
        asyncio.run(scenario.run(int(os.environ.get("TRELLIS_CRASH_LIVES") or KILLS)))
        exchanges = scenario.exchanges
        assert exchanges.broker_faults == [], "\n".join(exchanges.broker_faults)
        assert scenario.received.keys() == set(scenario.bodies)
        for body, count in scenario.received.items():
            assert count == exchanges.delivered[body] <= exchanges.published[body], body[:40]
    except Exception as error:
        scenario.write_record(directory / "packets.txt")
        error.add_note(
            f"seed {seed}; all packets are in {directory / 'packets.txt'}; "
            f"repeat with TRELLIS_CRASH_SEED={seed}"
        )
        raise
    return scenario


@pytest.mark.long
@pytest.mark.parametrize("level", [4, 5])
def test_each_message_arrives_once_however_often_the_broker_is_killed(
    level: int, tmp_path: Path
) -> None:
    scenario = run(tmp_path, level, False, CarefulClient)
    assert scenario.exchanges.publisher_faults == []
    assert len(scenario.bodies) > MESSAGES and set(scenario.received.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("level", [4, 5])
def test_only_a_publisher_that_publishes_again_causes_a_repetition(
    level: int, patient: bool, tmp_path: Path
) -> None:
    """Check that a message arrives twice only if the publisher has published it twice.

    paho, unlike CarefulClient, publishes some messages twice if its attempts to connect fail. While
    the broker is down, the relay keeps new connections waiting (`patient`) or closes them.
    """
    scenario = run(tmp_path, level, patient, paho.Client)
    repeated = {body for body, count in scenario.exchanges.published.items() if count > 1}
    assert {body for body, count in scenario.received.items() if count > 1} <= repeated
    assert bool(repeated) <= bool(scenario.exchanges.publisher_faults)


# -- the verdict


def record(*packets: tuple[str, int, int, bytes, bool], connection: int = 1) -> list[Recorded]:
    """Return recorded packets; each argument is one packet.

    A packet is (direction, kind, packet identifier, body, DUP flag).
    """
    return [
        Recorded(
            0.0,
            connection,
            PUBLISHER if PUBLISHER in way else SUBSCRIBER,
            way.endswith("> broker"),
            kind,
            packet_id,
            duplicate,
            body,
        )
        for way, kind, packet_id, body, duplicate in packets
    ]


UP, DOWN = f"{PUBLISHER} > broker", f"broker > {PUBLISHER}"
OUT, BACK = f"broker > {SUBSCRIBER}", f"{SUBSCRIBER} > broker"


def published(packet_id: int, body: bytes = b"x") -> list[Recorded]:
    """Return the recorded packets of a publication: PUBLISH, PUBREC and PUBREL, no PUBCOMP."""
    return record(
        (UP, PUBLISH, packet_id, body, False),
        (DOWN, PUBREC, packet_id, b"", False),
        (UP, PUBREL, packet_id, b"", False),
    )


def delivered(packet_id: int, body: bytes = b"x") -> list[Recorded]:
    """Return all packets of a delivery, from PUBLISH to PUBCOMP."""
    return record(
        (OUT, PUBLISH, packet_id, body, False),
        (BACK, PUBREC, packet_id, b"", False),
        (OUT, PUBREL, packet_id, b"", False),
        (BACK, PUBCOMP, packet_id, b"", False),
    )


def faults(packets: list[Recorded]) -> tuple[list[str], list[str]]:
    """Return (faults of the publisher, faults of the broker) that Exchanges finds in packets."""
    exchanges = Exchanges(PUBLISHER, SUBSCRIBER)
    for packet in packets:
        exchanges.take(packet)
    return tuple(  # type: ignore[return-value]
        [fault.partition(":")[0] for fault in messages]
        for messages in (exchanges.publisher_faults, exchanges.broker_faults)
    )


COMPLETED = record((DOWN, PUBCOMP, 7, b"", False))


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        (published(7) + delivered(1) + COMPLETED, ([], [])),
        (published(7) + COMPLETED + delivered(1) + delivered(2), ([], ["delivered again"])),
        (
            published(7) + delivered(1) + published(7) + delivered(2),
            (["PUBLISH after PUBREL"], []),
        ),
        (
            published(7) + COMPLETED + delivered(1) + published(8) + delivered(2),
            (["published again"], []),
        ),
        (
            published(7)
            + published(8, b"y")
            + record((OUT, PUBLISH, 1, b"x", False), (OUT, PUBLISH, 1, b"y", False)),
            ([], ["packet identifier in use"]),
        ),
        (
            published(7) + delivered(1)[:3] + record((OUT, PUBLISH, 1, b"x", True), connection=2),
            ([], ["PUBLISH after PUBREL"]),
        ),
        (
            published(7) + delivered(1)[:2] + record((OUT, PUBLISH, 1, b"x", False), connection=2),
            ([], ["PUBLISH again without DUP"]),
        ),
        (
            published(7) + delivered(1)[:2] + record((OUT, PUBLISH, 1, b"x", True)),
            ([], ["PUBLISH again on the same connection"]),
        ),
        (
            published(7) + delivered(1)[:1] + record((OUT, PUBREL, 1, b"", False)),
            ([], ["PUBREL without PUBREC"]),
        ),
        (published(7)[:2] + COMPLETED, ([], ["PUBCOMP without PUBREL"])),
        (
            published(7)[:1]
            + record((UP, PUBLISH, 7, b"x", True), connection=2)
            + published(7)[1:]
            + delivered(1),
            ([], []),
        ),
    ],
)
def test_the_verdict_names_the_side_that_repeats(
    packets: list[Recorded], expected: tuple[list[str], list[str]]
) -> None:
    assert faults(packets) == expected
