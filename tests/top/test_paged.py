"""Pages of lists that the broker selects itself: they equal the pages that the gateway makes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import product
from urllib.parse import urlencode

import pamqp.commands as spec
import pytest

from broker.routing.binding import Binding
from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.gateway_client import gateway_of
from tests.top.running import Running
from trellis.http.gateway.paging import PageQuery, encode_page
from trellis.http.management import connections, topology
from trellis.http.management.paged import Page


def queries(columns: list[str]) -> Iterator[dict[str, str]]:
    """Yield queries for pages of a list, sorted by each column, with and without a filter."""
    for sort, name in product(["", *columns], ["", "Q1"]):
        for reverse, page in (("true", "1"), ("false", "2")):
            yield {
                "page": page,
                "page_size": "7",
                "sort": sort,
                "sort_reverse": reverse,
                "name": name,
            }


@pytest.fixture
async def broker(start: Start) -> AsyncIterator[Running]:
    """Start a broker with 40 queues, some with messages and consumers, and three connections."""
    running = await start(**users())
    running.node.broker.create_vhost("other")
    vhost, other = (running.node.broker.vhosts[name] for name in ("/", "other"))
    for number in range(40):
        name = f"q{number * 7 % 40}"
        (other if number % 9 == 0 else vhost).declare_queue(name)
        if number % 9 and number % 4 == 0:
            vhost.bind("amq.fanout", Binding("", vhost.queues[name]))
    client = await running.amqp()
    for number in range(1, 5):
        await client.queue(f"q{number * 8}", passive=True)
        vhost.bind("amq.direct", Binding("k", vhost.queues[f"q{number * 8}"]))
        await client.socket.send(publication("amq.direct", "k", b"m"))
    await client.queue("q39", passive=True)
    others = [await running.amqp() for _ in range(2)]
    yield running
    del client, others  # A connection ends with its last reference.


@pytest.mark.parametrize("regex", ["", "&use_regex=true"])
async def test_the_last_page_of_an_empty_list_is_the_first(broker: Running, regex: str) -> None:
    """The gateway, and not the broker, makes the page if the filter is a regular expression."""
    status, answer = await api(broker, "GET", f"queues?page=2&name=absent{regex}")
    assert (status, answer["reason"]) == (400, "page 2 does not exist; the last page is 1")


async def test_a_page_of_the_broker_equals_the_page_of_the_gateway(broker: Running) -> None:
    for path, columns in (
        ("queues", topology.QUEUE_COLUMNS),
        ("connections", connections.COLUMNS),
    ):
        whole = (await api(broker, "GET", path))[1]
        assert len(whole) == (40 if path == "queues" else 3)
        for query in queries(list(columns)):
            status, page = await api(broker, "GET", f"{path}?{urlencode(query)}")
            if status == 400:
                assert (page["error"], query["page"]) == ("page_out_of_range", "2")
                continue
            expected = json.loads(encode_page(list(whole), PageQuery(query)))
            names = [
                [(row["vhost"], row["name"]) for row in one.pop("items")]
                for one in (page, expected)
            ]
            assert names[0] == names[1], query
            assert page == expected
            assert len(names[0]) == page["item_count"]


def test_the_broker_selects_no_page_that_the_gateway_refuses() -> None:
    numbers = ("", "0", "00", "1", "2", "-1", "1.0", " 1", "x", "\u00b2", "\u0663", "9" * 10)
    selected = 0
    for number, size in product(numbers, numbers):
        query = {"page": number, "page_size": size}
        if Page(query, ()).selected:
            wanted = PageQuery(query)
            assert wanted.paged and wanted.page * wanted.size == Page(query, ()).last
            selected += 1
    assert selected >= 4


async def test_only_the_rows_of_a_page_are_made(broker: Running) -> None:
    """Check that the broker makes the rows of a page only, not the rows of the whole list.

    The broker stores rates for each object whose row it makes, so the test counts these objects.
    """
    await api(broker, "GET", "connections?page=1&page_size=1&sort=recv_oct&sort_reverse=true")
    server = gateway_of(broker).server
    assert server is not None
    counters = server._backend.counters
    assert counters.rated_objects == 1
    await api(broker, "GET", "connections?page=1&page_size=1&sort=user")
    assert counters.rated_objects == 3


async def test_objects_without_a_name_are_found_by_their_key_tag_or_topic(broker: Running) -> None:
    vhost = broker.node.broker.vhosts["/"]
    vhost.bind("amq.topic", Binding("plant.*.temp", vhost.queues["q1"]))
    vhost.bind("amq.topic", Binding("Plant.a/b", vhost.queues["q2"]))
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("plant/7", b"x", flags=1))
    await broker.until(lambda: len(vhost.retained) == 1)
    page = "page=1&page_size=5"

    async def matches(path: str, query: str) -> tuple[int, list[str]]:
        answer = (await api(broker, "GET", f"{path}?{page}&{query}"))[1]
        rows = answer["items"]
        return answer["filtered_count"], [row.get("name") or row["routing_key"] for row in rows]

    by_key = "default=false&sort=routing_key&key="
    assert await matches("bindings", f"{by_key}plant") == (2, ["Plant.a/b", "plant.*.temp"])
    assert await matches("bindings", f"{by_key}plant/a.b") == (1, ["Plant.a/b"])
    assert (await matches("bindings", "key=q1"))[0] > 0  # A key of the default exchange.
    assert await matches("bindings", f"{by_key}q1") == (0, [])
    assert await matches("trellis/retained", "name=PLANT") == (1, ["plant/7"])
    client = await broker.amqp()
    for tag in ("reader-1", "other"):
        consume = spec.Basic.Consume(queue="q1", consumer_tag=tag)
        await client.call(consume, spec.Basic.ConsumeOk)
    assert await matches("trellis/consumers", "name=reader") == (1, ["reader-1"])
