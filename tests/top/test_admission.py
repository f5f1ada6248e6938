"""Tests of the limits on open connections."""

from __future__ import annotations

from protocols.peer import Peer
from tests.clients import World
from tests.top.conftest import Start
from trellis.server.admission import Admission

AFAR, ELSEWHERE, HERE = Peer("192.0.2.1", 1, False), Peer("192.0.2.2", 1, False), Peer()


def judge(admission: Admission, peer: Peer, open_now: int = 0) -> str:
    return admission.refusal_reason(peer.address, peer.local, open_now)


def test_one_address_has_a_limit_of_connections_without_a_login() -> None:
    world, admission = World(), Admission(connections=100, unauthenticated_per_address=3)
    strangers = [world.amqp_front.connect(AFAR) for _ in range(3)]
    for stranger in strangers:
        assert judge(admission, AFAR) == ""
        admission.add(stranger)
    assert judge(admission, AFAR) == "unauthenticated_per_address"
    assert judge(admission, ELSEWHERE) == ""
    assert admission.refused["unauthenticated_per_address"] == 1


def test_connections_that_close_log_in_or_finish_make_room() -> None:
    world, admission = World(), Admission(connections=100, unauthenticated_per_address=3)
    one, two, three = (world.mqtt_front.connect(AFAR) for _ in range(3))
    for stranger in (one, two, three):
        admission.add(stranger)
    admission.remove(one)
    two.admitted = True
    three.abort("protocol_error")
    for _ in range(3):
        assert judge(admission, AFAR) == ""
        admission.add(world.mqtt_front.connect(AFAR))
    assert judge(admission, AFAR) == "unauthenticated_per_address"


def test_admission_keeps_nothing_of_closed_connections() -> None:
    world, admission = World(), Admission(connections=100, unauthenticated_per_address=3)
    for number in range(50):
        stranger = world.amqp_front.connect(Peer(f"192.0.2.{number}", 1, False))
        admission.add(stranger)
        admission.remove(stranger)
        admission.remove(stranger)
    assert admission._unauthenticated == {}


def test_limits_per_address_do_not_apply_to_this_machine() -> None:
    world, admission = World(), Admission(connections=100, unauthenticated_per_address=1)
    for open_now in range(100):
        assert judge(admission, HERE, open_now) == ""
        admission.add(world.amqp_front.connect(HERE))
    assert judge(admission, HERE, 100) == "connections"
    assert {reason: count for reason, count in admission.refused.items() if count} == {
        "connections": 1
    }


async def test_connections_beyond_the_limit_are_closed_unread_and_counted(start: Start) -> None:
    running = await start(limits={"connections": 3})
    client = await running.amqp()
    others = [await running.mqtt("one"), await running.mqtt("two")]
    for listener in ("amqp", "mqtt"):
        refused = await running.socket(listener)
        assert await refused.read_to_end() == b""
    page = await running.scrape()
    assert page.value("trellis_connections_refused_total", reason="connections") == 2
    assert page.value("trellis_connections_limit") == 3
    assert page.value("rabbitmq_connections") == 3
    assert page.value("rabbitmq_connections_opened_total") == 3
    await client.leave()
    await running.until(lambda: len(running.node.turn.links) == 2)
    await running.amqp()
    assert len(others) == 2
