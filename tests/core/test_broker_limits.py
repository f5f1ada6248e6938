"""Limits of objects in a virtual host: one object above the limit is refused; 0 means no limit."""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from broker.errors import NotAllowed
from broker.limits import BrokerLimits
from broker.routing.exchanges.base import ExchangeOptions
from tests.clients import World
from trellis.settings import Limits, Settings, fill


def test_a_virtual_host_with_its_limit_of_queues_refuses_another_one() -> None:
    limits = BrokerLimits()
    limits.queues = 2
    vhost = World(limits).vhost
    for name in ("one", "two", "one"):
        vhost.declare_queue(name)
    with pytest.raises(NotAllowed, match=r"cannot declare queue 'three'.*limit of 2 queues"):
        vhost.declare_queue("three")
    vhost.delete_queue(vhost.queue("one"))
    vhost.declare_queue("three")


def test_a_virtual_host_with_its_limit_of_exchanges_refuses_another_one() -> None:
    limits = BrokerLimits()
    vhost = World(limits).vhost
    limits.exchanges = len(vhost.exchanges) + 1
    for _ in range(2):
        vhost.declare_exchange("one", "direct", ExchangeOptions())
    with pytest.raises(NotAllowed, match=rf"'two'.*limit of {limits.exchanges} exchanges"):
        vhost.declare_exchange("two", "direct", ExchangeOptions())
    vhost.delete_exchange("one")
    vhost.declare_exchange("two", "direct", ExchangeOptions())


def test_a_limit_of_0_is_no_limit() -> None:
    limits = BrokerLimits()
    limits.queues = limits.exchanges = 0
    limits.user_connections = limits.vhost_connections = 0
    limits.user_channels = limits.channel_consumers = 0
    world = World(limits)
    for number in range(20):
        world.vhost.declare_queue(f"q{number}")
        world.vhost.declare_exchange(f"x{number}", "fanout", ExchangeOptions())
    for _ in range(20):
        client = world.amqp()
        for queue in range(2):
            client.send(spec.Basic.Consume(queue=f"q{queue}"))
    assert len(world.vhost.queues) == 20
    assert world.vhost.queues["q1"].consumer_count == 20


def test_a_limit_of_0_in_the_settings_is_no_limit() -> None:
    limits = fill(BrokerLimits(), Settings(limits=Limits(queues=0, exchanges=0)))
    assert (limits.queues, limits.exchanges) == (0, 0)
    limits = fill(BrokerLimits(), Settings(limits=Limits(queues=7, exchanges=8)))
    assert (limits.queues, limits.exchanges) == (7, 8)
