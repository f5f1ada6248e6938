"""A PacketIdSet has the same identifiers as a set, whatever the order of its changes."""

from __future__ import annotations

from random import Random

import pytest

from protocols.mqtt.session.packet_id_set import IDENTIFIERS, NO_PACKET_IDS, PacketIdSet


def check(identifiers: PacketIdSet, model: set[int]) -> None:
    assert identifiers.count == len(model)
    assert identifiers.identifiers() == sorted(model)


@pytest.mark.parametrize("seed", range(40))
def test_a_set_of_packet_identifiers_is_a_set(seed: int) -> None:
    random = Random(seed)
    identifiers, model = PacketIdSet(), set[int]()
    following = random.choice((1, IDENTIFIERS - 3, 30_000))
    in_order = random.random()
    for _ in range(400):
        near = (following - 1 + random.randrange(-8, 8)) % IDENTIFIERS + 1
        assert identifiers.contains(near) == (near in model)
        if random.random() < 0.5:
            packet_id = following if random.random() < in_order else near
            following = following % IDENTIFIERS + 1
            identifiers.add(packet_id)
            model.add(packet_id)
        elif model and random.random() < 0.9:
            ascending = identifiers.identifiers()
            packet_id = ascending[0] if random.random() < in_order else random.choice(ascending)
            assert identifiers.remove(packet_id)
            model.remove(packet_id)
        else:
            assert identifiers.remove(near) == (near in model)
            model.discard(near)
        check(identifiers, model)


def test_consecutive_identifiers_make_no_objects() -> None:
    identifiers = PacketIdSet()
    for at in range(3 * IDENTIFIERS):
        identifiers.add(at % IDENTIFIERS + 1)
        assert identifiers.contains(at % IDENTIFIERS + 1)
        if at >= 10:
            assert identifiers.remove((at - 10) % IDENTIFIERS + 1)
    assert identifiers.count == 10 and identifiers._others is NO_PACKET_IDS._others


def test_all_identifiers_fit_into_the_set() -> None:
    identifiers = PacketIdSet()
    for packet_id in [*range(500, IDENTIFIERS + 1), *range(1, 500)]:
        identifiers.add(packet_id)
    assert identifiers.count == IDENTIFIERS and identifiers._others is NO_PACKET_IDS._others
    assert identifiers.remove(IDENTIFIERS)
    assert not identifiers.contains(IDENTIFIERS) and identifiers.contains(1)
    assert identifiers.count == IDENTIFIERS - 1
    assert len(identifiers.identifiers()) == IDENTIFIERS - 1


def test_an_identifier_that_stays_does_not_keep_the_others() -> None:
    identifiers = PacketIdSet()
    for packet_id in range(1, 1_001):
        identifiers.add(packet_id)
    for packet_id in range(2, 1_001):
        assert identifiers.remove(packet_id)
    assert identifiers.identifiers() == [1] and len(identifiers._others) == 1
