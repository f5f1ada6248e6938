"""Tests of the HTTP API with an exclusive queue, which belongs to one AMQP connection.

RabbitMQ's management API refuses to get, purge, delete, bind and unbind such a queue, because the
request comes from another connection. The further paths of Trellis's API follow this rule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pamqp.commands as spec
import pytest

from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running

LOCKED: Final = "cannot obtain exclusive access to locked queue 'own'"
REQUESTS: Final[list[tuple[str, str, Any]]] = [
    ("DELETE", "queues/%2F/own/contents", None),
    ("POST", "queues/%2F/own/get", {"ackmode": "ack_requeue_true", "count": 1}),
    ("DELETE", "queues/%2F/own", None),
    ("PUT", "queues/%2F/own", {"durable": False}),
    ("PUT", "queues/%2F/own/pause", None),
    ("DELETE", "queues/%2F/own/pause", None),
    ("POST", "queues/%2F/own/move", {"queue": "other"}),
    ("POST", "queues/%2F/own/move", {"exchange": "amq.fanout", "dry_run": True}),
    ("POST", "queues/%2F/own/redrive", {}),
    ("POST", "bindings/%2F/e/amq.fanout/q/own", {}),
    ("DELETE", "bindings/%2F/e/amq.direct/q/own/key", None),
]


@pytest.fixture
async def broker(start: Start) -> AsyncIterator[Running]:
    """Run a broker with the queue `other`, and with `own`, which is exclusive to a client.

    The queue `own` has one message, and is bound to `amq.direct`.
    """
    running = await start(**users())
    client = await running.amqp()
    await client.queue("other")
    await client.queue("own", exclusive=True)
    bind = spec.Queue.Bind(queue="own", exchange="amq.direct", routing_key="key")
    await client.call(bind, spec.Queue.BindOk)
    await client.socket.send(publication("", "own", b"reply"))
    await client.queue("own", exclusive=True)
    yield running
    client.socket.close()


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_the_exclusive_queue_of_a_connection_is_refused(
    broker: Running, method: str, path: str, body: Any
) -> None:
    status, answer = await api(broker, method, path, body, "admin")
    assert (status, answer["error"]) == (400, "bad_request")
    assert LOCKED in answer["reason"]
    queue = broker.node.broker.vhosts["/"].queues["own"]
    assert queue.depth == 1 and not queue.paused
    bound = (await api(broker, "GET", "queues/%2F/own/bindings"))[1]
    assert [row["source"] for row in bound] == ["", "amq.direct"]


async def test_only_administrators_peek_into_an_exclusive_queue(broker: Running) -> None:
    path = "queues/%2F/own/messages"
    status, answer = await api(broker, "GET", path, None, "polly")
    assert (status, answer["error"]) == (403, "not_authorised")
    assert "lacks the tag 'administrator'" in answer["reason"]
    for way in ("move", "redrive"):
        body = {"queue": "other", "dry_run": True} if way == "move" else {"dry_run": True}
        assert (await api(broker, "POST", f"queues/%2F/own/{way}", body, "polly"))[0] == 403
    (row,) = (await api(broker, "GET", path))[1]
    assert row["payload"] == "reply"
