"""Tests of the limits on open connections."""

from __future__ import annotations

import pytest

from protocols.peer import Peer, network_of
from tests.clients import World
from tests.top.conftest import Start
from trellis.auth.login_throttle import LoginThrottle
from trellis.auth.rates import PublishRates
from trellis.server.admission import Admission
from trellis.settings.limits import RatesSettings

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


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("unix", "unix"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        (":nonsense", ":nonsense"),
    ],
)
def test_the_addresses_of_an_ipv6_network_count_together(address: str, network: str) -> None:
    assert network_of(address) == network


def test_a_client_with_many_ipv6_addresses_has_one_limit() -> None:
    notes: list[object] = []
    admission = Admission(100, 2, log=lambda event, fields: notes.append(fields["note"]))
    world = World()
    throttle, rates = LoginThrottle(), PublishRates(RatesSettings(address_messages=1, patience=60))
    strangers = [Peer(f"2001:db8:0:1::{number}", 1, False) for number in range(10)]
    for number, stranger in enumerate(strangers):
        reason = "" if number < 2 else "unauthenticated_per_address"
        assert judge(admission, stranger, number) == reason
        if not reason:
            admission.add(world.amqp_front.connect(stranger))
        throttle.on_failure(f"user {number}", stranger.address, False, 0.0)
        assert rates.charge({}, "", "", stranger.address, 1, 1, 0)[0] == number
    assert throttle.wait("another", "2001:db8:0:1:ffff::", False, 0.0) > 0
    assert throttle.wait("another", "2001:db8:0:2::", False, 0.0) == 0
    assert judge(admission, Peer("2001:db8:0:2::", 1, False), 10) == ""
    assert len(notes) == 8 and all("or from its IPv6 network (/64), have" in str(n) for n in notes)


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


def test_a_local_client_is_not_subtracted_from_the_clients_of_a_proxy_at_its_address() -> None:
    world = World()
    admission = Admission(connections=100, unauthenticated_per_address=100, per_address=2)
    proxied, known = Peer(HERE.address, 1, False), Peer(HERE.address, 2, True)
    for _ in range(2):
        assert judge(admission, proxied) == ""
        admission.add(world.amqp_front.connect(Peer(HERE.address, 1, False)))
    local = world.mqtt_front.connect(known)
    admission.add(local)
    known.local = False  # as an upgrade to WebSocket with a foreign Origin does
    admission.remove(local)
    assert judge(admission, proxied) == "address_connections"


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
