"""Tests of webhooks: a real broker, and an HTTP service whose answers the test decides."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, Final

import aio_pika
import pika
import pytest

pytest.importorskip("aiohttp", reason="the extra [connect] is not installed")

from aiohttp import web
from standardwebhooks import Webhook

from tests.broker import BrokerProcess
from tests.connectors.conftest import PATIENCE, SECRET, Links, Service, depth, letters, until
from trellis.connect import source
from trellis.connect.link import ConnectorLink
from trellis.connect.status import LinkState

Channel = aio_pika.abc.AbstractChannel
#: Settings with short pauses.
FAST: Final = {"secrets": [SECRET], "allow_private": True, "retry_first": 0.01, "retry_max": 0.05}


async def publish(channel: Channel, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        message = aio_pika.Message(
            body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **properties
        )
        await channel.default_exchange.publish(message, queue)


async def queue_of(channel: Channel, name: str, **arguments: Any) -> str:
    await channel.declare_queue(name, durable=True, arguments=arguments)
    return name


def webhook(links: Links, service: Service, name: str, **more: Any) -> ConnectorLink:
    source = {"queue": name} if "stream" not in more else {}
    section = {"name": name[-60:], "url": service.url, "dead_letter": f"{name}.failed"}
    return links.start("webhook", **{**section, **source, **FAST, **more})


def statuses(*codes: int, **headers: str) -> Any:
    """Return an `answer` that gives these statuses one after another, and then 200."""
    left = list(codes)

    async def answer(_: bytes) -> web.Response:
        status = left.pop(0) if left else 200
        return web.Response(status=status, headers=headers if status != 200 else {})

    return answer


async def test_a_message_is_a_signed_request(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    await publish(
        channel,
        unique,
        b'{"n": 1}',
        content_type="application/json",
        message_id="m-1",
        type="order created",
        headers={"traceparent": "00-1-2-01"},
    )
    link = webhook(links, service, unique, headers={"authorization": "Bearer x"})
    await until(lambda: link.status.delivered == 1)
    [headers], [body] = service.requests, service.bodies
    assert Webhook(SECRET).verify(body, headers) == {"n": 1}
    expected = {
        "webhook-id": "m-1",
        "content-type": "application/json",
        "x-trellis-routing-key": unique,
        "x-trellis-type": "order%20created",
        "traceparent": "00-1-2-01",
        "authorization": "Bearer x",
    }
    assert expected.items() <= headers.items()
    await links.stop(link)
    assert await depth(channel, unique) == 0


async def test_a_failed_request_is_sent_again_with_the_same_identifier(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    service.answer = statuses(500, 302, 404)
    await publish(channel, unique, b"x")
    link = webhook(links, service, unique)
    await until(lambda: link.status.delivered == 1)
    assert len({headers["webhook-id"] for headers in service.requests}) == 1
    assert link.status.answers == {"500": 1, "302": 1, "404": 1, "200": 1}
    assert link.status.retries == 3


async def test_after_the_last_attempt_a_message_is_a_dead_letter(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    service.answer = statuses(*[503] * 3)
    await publish(channel, unique, b"poison", headers={"own": 7}, expiration=3600)
    link = webhook(links, service, unique, attempts=3, in_flight=1)
    [letter] = await letters_of(channel, link, unique)
    assert letter.body == b"poison"
    assert letter.expiration is None
    assert letter.headers["own"] == 7
    assert letter.headers["x-connect-attempts"] == 3
    assert str(letter.headers["x-connect-reason"]).startswith("503")
    assert letter.headers["x-connect-routing-key"] == unique
    await publish(channel, unique, b"next")
    await until(lambda: link.status.delivered == 1)
    assert service.bodies == [b"poison"] * 3 + [b"next"]
    await links.stop(link)
    assert await depth(channel, unique) == 0


async def test_a_dead_letter_does_not_carry_out_the_headers_of_its_publisher(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    """Check that a dead letter has neither the sequence number nor CC of its message.

    With the sequence number, the broker would drop the dead letter as a repeat. With CC, the
    default exchange would bring it to another queue; the fanout exchange of the message ignores CC.
    """
    await queue_of(channel, unique)
    victim = await queue_of(channel, f"{unique}.victim")
    entry = await channel.declare_exchange(unique, aio_pika.ExchangeType.FANOUT, auto_delete=True)
    queue = await channel.get_queue(unique)
    await queue.bind(entry)
    headers: Any = {"CC": [victim], "x-trellis-producer": unique, "x-trellis-sequence": 1, "own": 7}
    await entry.publish(aio_pika.Message(b"poison", headers=headers), "any")
    service.answer = statuses(503)
    link = webhook(links, service, unique, attempts=1)
    [letter] = await letters_of(channel, link, unique)
    assert letter.body == b"poison" and letter.headers["own"] == 7
    assert not letter.headers.keys() & {"CC", "x-trellis-producer", "x-trellis-sequence"}
    assert await depth(channel, victim) == 0
    await links.stop(link)


async def letters_of(channel: Channel, link: ConnectorLink, queue: str, count: int = 1) -> Any:
    await until(lambda: link.status.dead_lettered == count)
    return await letters(channel, f"{queue}.failed", count)


async def test_redirects_are_not_followed(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    service.answer = statuses(307, location=service.url.replace("/hook", "/other"))
    await publish(channel, unique, b"x")
    link = webhook(links, service, unique, attempts=1)
    await letters_of(channel, link, unique)
    assert len(service.requests) == 1


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433"])
async def test_a_private_address_gets_no_request(
    links: Links, service: Service, channel: Channel, unique: str, host: str
) -> None:
    await queue_of(channel, unique)
    await publish(channel, unique, b"x")
    url = service.url.replace("127.0.0.1", host)
    link = webhook(links, service, unique, url=url, allow_private=False, attempts=2)
    [letter] = await letters_of(channel, link, unique)
    # Newer versions of aiohttp refuse the short forms of an address themselves.
    reason = str(letter.headers["x-connect-reason"])
    assert "not a public address" in reason or "not a canonical IPv4 address" in reason
    assert service.requests == []


async def test_410_stops_the_link_and_keeps_the_messages(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    service.answer = statuses(410)
    await publish(channel, unique, b"1", b"2", b"3")
    link = webhook(links, service, unique, in_flight=1)
    await until(lambda: link.status.state is LinkState.STOPPED)
    assert not link.status.healthy
    assert "the service at 127.0.0.1 answered 410" in link.status.error
    await messages_in(channel, unique, 3)
    again = webhook(links, service, unique)
    await until(lambda: again.status.delivered == 3)


async def messages_in(channel: Channel, queue: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await depth(channel, queue) != count:  # noqa: ASYNC110  (the broker has the state)
            await asyncio.sleep(0.02)


async def test_retry_after_pauses_the_whole_link(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    loop = asyncio.get_running_loop()
    times: list[float] = []
    first = statuses(429, **{"retry-after": "1"})

    async def answer(body: bytes) -> web.StreamResponse:
        times.append(loop.time())
        response: web.StreamResponse = await first(body)
        return response

    service.answer = answer
    await publish(channel, unique, b"1")
    link = webhook(links, service, unique, in_flight=4)
    await until(lambda: link.status.state is LinkState.PAUSED)
    assert link.status.healthy
    await publish(channel, unique, b"2", b"3")
    await until(lambda: link.status.delivered == 3)
    assert min(times[1:]) - times[0] >= 0.99
    assert link.status.state is LinkState.RUNNING


async def test_an_error_does_not_show_the_path_of_the_url(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    """Check that errors in /health and dead letters omit the URL's path, which may be secret."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"this is not HTTP\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    answering = server.sockets[0].getsockname()[1]
    for port, error in ((answering, "Bad status line"), (99_999, "the setting `url` is invalid")):
        name = await queue_of(channel, f"{unique}-{port}")
        await publish(channel, name, b"1")
        url = f"http://127.0.0.1:{port}/secret-path?secret-query"
        link = webhook(links, service, name, url=url, attempts=1)
        [letter] = await letters_of(channel, link, name)
        for text in (str(letter.headers["x-connect-reason"]), str(link.status.document())):
            assert error in text and "secret" not in text
        await links.stop(link)
    server.close()


async def test_a_request_without_an_answer_times_out(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    release = asyncio.Event()

    async def answer(_: bytes) -> web.StreamResponse:
        if len(service.requests) == 1:
            await release.wait()
        return web.Response()

    service.answer = answer
    await publish(channel, unique, b"x")
    link = webhook(links, service, unique, timeout=0.2)
    await until(lambda: link.status.delivered == 1)
    assert link.status.answers["error"] >= 1
    assert "no answer within 0.2 s" in link.status.error
    release.set()


async def test_at_most_in_flight_requests_are_under_way(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)

    async def answer(_: bytes) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.Response()

    service.answer = answer
    await publish(channel, unique, *(b"%d" % n for n in range(40)))
    link = webhook(links, service, unique, in_flight=3)
    await until(lambda: link.status.in_flight == 3)
    await messages_in(channel, unique, 0)
    await until(lambda: link.status.delivered == 40)
    assert service.most_active == 3


async def test_one_request_at_a_time_keeps_the_order(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    bodies = [b"%d" % n for n in range(50)]
    service.answer = statuses(500, 200, 500, 500)
    await publish(channel, unique, *bodies)
    link = webhook(links, service, unique, in_flight=1)
    await until(lambda: link.status.delivered == 50)
    assert list(dict.fromkeys(service.bodies)) == bodies


async def test_a_batch_is_cloud_events(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    await publish(channel, unique, b'{"n": 1}', content_type="application/json", message_id="a")
    await publish(channel, unique, b"text", content_type="text/plain", type="note")
    await publish(channel, unique, b"\xff\x00", b"{", content_type="application/json")
    link = webhook(links, service, unique, batch=4, batch_wait=5)
    await until(lambda: link.status.delivered == 4)
    [body], [headers] = service.bodies, service.requests
    assert headers["content-type"] == "application/cloudevents-batch+json"
    events = Webhook(SECRET).verify(body, headers)
    assert [each.get("data", each.get("data_base64")) for each in events] == [
        {"n": 1},
        "text",
        "/wA=",
        "ew==",
    ]
    assert events[0] | {"data": 0} == {
        "specversion": "1.0",
        "id": "a",
        "source": f"/{unique}",
        "type": "trellis.message",
        "subject": unique,
        "datacontenttype": "application/json",
        "data": 0,
    }
    assert events[1]["type"] == "note"
    assert len({each["id"] for each in events}) == 4


async def test_a_batch_that_fails_is_dead_lettered_whole(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    service.answer = statuses(500, 500)
    await publish(channel, unique, b"1", b"2", b"3")
    link = webhook(links, service, unique, batch=3, batch_wait=5, attempts=2)
    letters = await letters_of(channel, link, unique, 3)
    assert [each.body for each in letters] == [b"1", b"2", b"3"]


async def test_stopping_finishes_requests_under_way(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    release = asyncio.Event()

    async def answer(_: bytes) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    service.answer = answer
    await publish(channel, unique, *(b"%d" % n for n in range(10)))
    link = webhook(links, service, unique, in_flight=2)
    await until(lambda: service.active == 2)
    stopping = asyncio.create_task(links.stop(link))
    await asyncio.sleep(0)
    release.set()
    await stopping
    assert link.status.delivered == 2
    await messages_in(channel, unique, 8)


async def test_a_deleted_queue_is_an_error_until_it_exists_again(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique)
    link = webhook(links, service, unique)
    await until(lambda: link.status.state is LinkState.RUNNING)
    await channel.queue_delete(unique)
    await until(lambda: link.status.state is LinkState.FAILING)
    await queue_of(channel, unique)
    await publish(channel, unique, b"x")
    await until(lambda: link.status.delivered == 1)
    assert link.status.state is LinkState.RUNNING


# -- streams


def publish_plain(url: str, queue: str, count: int) -> None:
    """Publish `count` numbers without the property message_id.

    This function uses pika, because aio-pika adds a message_id to each message.
    """
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number)


async def test_a_stream_continues_after_the_stored_offset(
    links: Links,
    service: Service,
    channel: Channel,
    unique: str,
    keeping_broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "STORE_SECONDS", 0.01)
    await queue_of(channel, unique, **{"x-queue-type": "stream"})
    await asyncio.to_thread(publish_plain, keeping_broker.amqp_url, unique, 3)
    link = webhook(links, service, unique, stream=unique)
    await until(lambda: link.status.offset == 2)
    assert [each["webhook-id"] for each in service.requests] == [f"{unique}-{n}" for n in range(3)]
    await links.kill(link)
    await publish(channel, unique, b"3")
    link = webhook(links, service, unique, stream=unique)
    await until(lambda: link.status.offset == 3)
    assert service.bodies == [b"0", b"1", b"2", b"3"]
    await links.stop(link)


async def test_the_stored_offset_is_before_the_first_open_row(
    links: Links,
    service: Service,
    channel: Channel,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "STORE_SECONDS", 0.01)
    await queue_of(channel, unique, **{"x-queue-type": "stream"})
    release = asyncio.Event()

    async def answer(body: bytes) -> web.StreamResponse:
        if body == b"1" and not release.is_set():
            await release.wait()
        return web.Response()

    service.answer = answer
    await publish(channel, unique, b"0", b"1", b"2", b"3")
    link = webhook(links, service, unique, stream=unique, in_flight=4)
    await until(lambda: link.status.delivered == 3 and link.status.offset == 0)
    await links.kill(link)
    release.set()
    link = webhook(links, service, unique, stream=unique)
    await until(lambda: link.status.offset == 3)
    assert Counter(service.bodies) == {b"0": 1, b"1": 2, b"2": 2, b"3": 2}


async def test_one_process_at_a_time_reads_a_stream(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique, **{"x-queue-type": "stream"})
    await publish(channel, unique, *(b"%d" % n for n in range(20)))
    one = webhook(links, service, unique, stream=unique)
    await until(lambda: one.status.delivered == 20)
    other = webhook(links, service, unique, stream=unique)
    await until(lambda: other.status.state is LinkState.FAILING)
    assert "RESOURCE_LOCKED" in other.status.error
    await links.stop(one)
    await publish(channel, unique, b"20")
    await until(lambda: other.status.delivered == 1)
    assert json.loads(service.bodies[-1]) == 20


async def test_a_dead_letter_of_a_stream_has_its_offset(
    links: Links, service: Service, channel: Channel, unique: str
) -> None:
    await queue_of(channel, unique, **{"x-queue-type": "stream"})
    service.answer = statuses(500)
    await publish(channel, unique, b"0")
    link = webhook(links, service, unique, stream=unique, attempts=1)
    [letter] = await letters_of(channel, link, unique)
    assert letter.headers["x-connect-offset"] == 0
    assert "x-stream-offset" not in letter.headers
