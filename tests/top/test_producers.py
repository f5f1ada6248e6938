"""Tests of sequence numbers of messages over HTTP: each user has numbers of its own.

When a user is removed, the broker forgets the user's numbers.
"""

from __future__ import annotations

from typing import Final

from broker.routing.deduplication import NumberedPublication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running, settings

LAST: Final = 2**63 - 1


async def routed(broker: Running, user: str, sequence: int, password: str = "known") -> bool:
    """Publish a numbered message over HTTP; return True if the queue got it."""
    queue = broker.node.broker.vhosts["/"].queues["q"]
    before = queue.depth
    headers = {"x-trellis-producer": "p", "x-trellis-sequence": sequence}
    message = {
        "routing_key": "q",
        "payload": "x",
        "payload_encoding": "string",
        "properties": {"headers": headers},
    }
    path = "exchanges/%2F/amq.default/publish"
    status, answer = await api(broker, "POST", path, message, user, password)
    assert status == 200, answer
    return bool(queue.depth > before)


async def test_numbers_over_http_belong_to_the_user_and_end_with_it(start: Start) -> None:
    broker = await start(**users())
    assert (await api(broker, "PUT", "queues/%2F/q"))[0] == 201
    ann = {"password": "ann", "tags": "management"}
    rights = {"configure": "", "write": ".*", "read": ""}
    for again in (False, True):
        assert (await api(broker, "PUT", "users/ann", ann))[0] == 201
        assert (await api(broker, "PUT", "permissions/%2F/ann", rights))[0] == 201
        assert await routed(broker, "watcher", LAST) is not again
        assert await routed(broker, "known", 1) is not again
        assert await routed(broker, "ann", 1, "ann")
        assert not await routed(broker, "ann", 1, "ann")
        assert (await api(broker, "DELETE", "users/ann"))[0] == 204
    given = users()
    others = [user for user in given["users"] if user["name"] != "watcher"]
    await broker.reload(settings(users=others))
    producers = broker.node.broker.vhosts["/"].producers
    assert producers.last.by_owner == {"known": {"p": 1}}
    # A connection of the removed user publishes its last message before it is closed.
    producers.record("watcher", NumberedPublication("p", LAST), None)
    await broker.reload(settings(**given))
    assert await routed(broker, "watcher", 0)
