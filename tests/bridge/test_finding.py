"""Tests of LinkFinder, which finds the shovels and federation links that parameters define."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.queues.policies import Policy
from tests.clients import World
from trellis.bridge import collecting
from trellis.bridge.collecting import LINKS_MAX, UPSTREAM, InvalidLink, Link, LinkFinder
from trellis.bridge.contract import LINKS_BYTES, SHOVEL, Configure, LocalAmqp, Shovel, line

LOCAL = LocalAmqp("127.0.0.1", 5672, "guest", "guest", "here")

VALUE: dict[str, Any] = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "dest-uri": "amqp://127.0.0.1",
    "dest-queue": "b",
}


def finder(world: World, port: int = 5672) -> LinkFinder:
    return LinkFinder(world.broker, LocalAmqp("127.0.0.1", port, "guest", "guest", "here"))


def define(world: World, name: str, **value: object) -> None:
    world.vhost.parameters.set(SHOVEL, name, {**VALUE, **value})


def links_of(links: LinkFinder) -> list[Link]:
    return asyncio.run(links.find())


def test_a_shovel_is_parsed_again_only_after_a_change() -> None:
    world = World()
    links = finder(world)
    define(world, "s")
    [first] = links_of(links)
    assert links_of(links)[0] is first
    define(world, "s", rate=7)
    [changed] = links_of(links)
    assert isinstance(changed, Shovel) and changed.rate == 7


def test_a_shovel_is_defined_until_its_parameter_changes_or_is_deleted() -> None:
    world = World()
    links = finder(world)
    define(world, "s")
    [shovel] = links_of(links)
    assert isinstance(shovel, Shovel)
    assert links.defines(shovel)
    define(world, "s", rate=7)
    assert not links.defines(shovel)
    define(world, "s")
    assert links.defines(shovel)
    world.vhost.parameters.clear(SHOVEL, "s")
    assert not links.defines(shovel)


def test_after_the_limit_one_link_is_listed_with_the_reason_and_the_rest_is_left_out() -> None:
    world = World()
    links = finder(world)
    for number in range(LINKS_MAX + 5):
        define(world, f"s{number}")
    every = links_of(links)
    assert len(every) == LINKS_MAX + 1
    last = every.pop()
    assert isinstance(last, InvalidLink)
    assert last.reason == f"the limit is {LINKS_MAX} shovels and federation links: delete some"
    again = links_of(links)
    assert all(before is after for before, after in zip(every, again[:-1], strict=True))
    world.vhost.parameters.clear(SHOVEL, "s0")
    assert isinstance(links_of(links)[LINKS_MAX - 1], Shovel)


def test_large_shovels_that_do_not_fit_into_the_message_to_the_worker_are_listed() -> None:
    """Check that a shovel above the limit of LINKS_BYTES is listed, with the limit as the reason.

    The limit exists because the broker encodes all links in one turn of its event loop.
    """
    world = World()
    links = finder(world)
    # Each quotation mark takes four bytes in JSON within JSON.
    value = {**VALUE, "src-consumer-args": {"x": '"' * 30_000}}
    vhosts = [world.vhost, *(world.broker.create_vhost(name) for name in ("b", "c"))]
    for vhost in vhosts:
        for number in range(8):
            vhost.parameters.set(SHOVEL, f"s{number}", value)
    every = links_of(links)
    assert len(every) == 24
    configured = [link for link in every if isinstance(link, Shovel)]
    size = len(line(Configure(1, [], configured, LOCAL)))
    assert LINKS_BYTES - 130_000 < size < LINKS_BYTES + 1_000
    last = every[-1]
    assert isinstance(last, InvalidLink)
    assert f"together is {LINKS_BYTES} bytes: shorten or delete definitions" in last.reason
    # A small shovel still fits, and the others as soon as there is room.
    vhosts[-1].parameters.set(SHOVEL, "small", VALUE)
    assert isinstance(links_of(links)[-1], Shovel)
    for number in range(8):
        world.vhost.parameters.clear(SHOVEL, f"s{number}")
    assert all(isinstance(link, Shovel) for link in links_of(links))


@pytest.mark.parametrize(
    ("uri", "usable"), [("amqp://", False), ("amqp:///v", False), ("amqp://127.0.0.1", True)]
)
def test_without_the_listener_amqp_only_uris_with_a_host_are_usable(uri: str, usable: bool) -> None:
    world = World()
    define(world, "s", **{"src-uri": uri})
    [link] = links_of(finder(world, port=0))
    assert isinstance(link, Shovel) == usable
    if isinstance(link, InvalidLink):
        assert "whose AMQP listener is off; set amqp.enabled" in link.reason


def test_an_unchanged_federation_link_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a second search does not encode an unchanged link again.

    The broker searches every second, and each search makes new objects for federation links.
    """
    sizes: list[Link] = []
    size = collecting._size

    def size_of(link: Link) -> int:
        sizes.append(link)
        return size(link)

    monkeypatch.setattr(collecting, "_size", size_of)
    world = World()
    parameters, policies = world.vhost.parameters, world.vhost.applied_policies
    parameters.set(UPSTREAM, "up", {"uri": "amqp://far"})
    federated = {"federation-upstream": "up"}
    policies.set_policy(Policy("/", "p", "^amq.topic$", "exchanges", 0, federated))
    links = finder(world)
    [first] = links_of(links)
    assert isinstance(first, Shovel) and links_of(links) == [first]
    assert sizes == [first]
    parameters.set(UPSTREAM, "up", {"uri": "amqp://other"})
    assert len(links_of(links)) == 1 and len(sizes) == 2
