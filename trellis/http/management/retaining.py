"""Retained messages of MQTT topics: list and remove them by a topic filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

from broker.access.identity import READ_NONE, READ_SOME, Identity
from broker.errors import AccessRefused
from broker.messages.message import Message, topic_of
from broker.names import shown
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT, InvalidPattern, swap
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.connection.reauthorization import read_scope
from trellis.http import contract
from trellis.http.management.answers import ApiRefusal, Call, Listing, Row, bad_request
from trellis.http.management.messages import (
    FETCHED_BYTES_MAX,
    check_encoding,
    json_properties,
    whole_number,
)
from trellis.http.management.serializers import printable

#: Largest number of retained messages in one answer, and the number if the query has no `count`.
LISTED_MAX: Final = 10_000
LISTED: Final = 100
#: Largest number of retained messages that are counted.
COUNTED_MAX: Final = 50_000
#: Largest number of bytes of each body in one answer, and the number if the query has no
#: `truncate`.
BODY_MAX: Final = 1 << 20
BODY: Final = 1024
#: Number of topics that are compared with the filter before other work may run.
_TOPICS: Final = 50
#: Number of retained messages that are removed in one change.
_REMOVED: Final = 100


class RetainedSelection:
    """The retained messages of a virtual host that match the filter of a call.

    Raises ApiRefusal if the filter is invalid.
    """

    def __init__(self, call: Call) -> None:
        self.vhost = call.vhost(call.path_parameters[0])
        self.filter = call.query.get("filter", "#")
        try:
            MQTT.check(self.filter)
        except InvalidPattern as error:
            raise bad_request(f"the filter '{shown(self.filter)}' is not valid: {error}") from None
        self._keys = self.vhost.retained.topics()

    def matching(self) -> Iterator[str | None]:
        """Yield the routing keys of matching retained messages; None when other work may run.

        At None, the caller must end its slice of time.
        """
        for number, key in enumerate(self._keys, 1):
            if MQTT.matches(self.filter, swap(key)):
                yield key
            if number % _TOPICS == 0:
                yield None


def _identity(call: Call, vhost: VirtualHost) -> Identity:
    """Return the user's identity in a virtual host. Raises AccessRefused."""
    within = call.identity.for_vhost(vhost.name)
    if within is None:
        raise AccessRefused(
            f"access to vhost '{vhost.name}' refused for user '{call.identity.name}': grant "
            "permissions with `trellis permissions set`"
        )
    return within


class ReadableTopics:
    """The retained messages of a selection that the user of a call may read.

    Raises AccessRefused if the user may read none of them.
    """

    def __init__(self, call: Call, selection: RetainedSelection) -> None:
        self._retained = selection.vhost.retained
        self._identity = _identity(call, selection.vhost)
        scope = read_scope(self._identity, selection.filter, selection.vhost.name)
        if scope == READ_NONE:
            raise AccessRefused(
                f"read access to topics '{selection.filter}' in vhost '{selection.vhost.name}' "
                f"refused for user '{self._identity.name}': grant `read` on the exchange, or allow "
                "the filter with a topic rule"
            )
        self._some = scope == READ_SOME

    def message(self, key: str) -> Message | None:
        """Return the retained message of a routing key.

        Return None if the message was removed, or if the user may not read it.
        """
        message = self._retained.get(key)
        if message is None or self._some and not self._identity.may_read(message.address.topic):
            return None
        return message


async def count(call: Call) -> Row:
    """Count the topics with a retained message that match the MQTT filter `filter`.

    Without `filter`, all topics match. The count ends at COUNTED_MAX topics; `more` is true if more
    topics match.
    """
    selection = RetainedSelection(call)
    readable = ReadableTopics(call, selection)
    topics = 0
    async with call.slice() as work:
        for key in selection.matching():
            if key is not None and readable.message(key) is not None:
                topics += 1
                if topics > COUNTED_MAX:
                    break
            if work.over:
                await work.pause()
    return {"topics": min(topics, COUNTED_MAX), "more": topics > COUNTED_MAX}


async def retained(call: Call) -> Listing:
    """Return the retained messages whose topics match the MQTT filter `filter`.

    Without `filter`, all topics match. The query may also have `count` (largest number of
    messages), `truncate` (largest number of bytes of each body) and `encoding` (auto or base64).
    """
    selection = RetainedSelection(call)
    readable = ReadableTopics(call, selection)
    count = whole_number(call.query, "count", LISTED, LISTED_MAX)
    truncate = whole_number(call.query, "truncate", BODY, BODY_MAX)
    encoding = call.query.get("encoding", "auto")
    check_encoding(encoding)

    async def rows() -> AsyncIterator[Row | None]:
        left, size = count, 0
        for key in selection.matching():
            message = None if key is None else readable.message(key)
            if message is None:
                yield None
                continue
            if left == 0 or size >= FETCHED_BYTES_MAX:
                return
            row = _row(message, truncate, encoding, int(call.broker.agenda.now))
            left -= 1
            size += len(row["payload"])
            yield row

    return Listing(rows(), contract.MESSAGES)


def _row(message: Message, truncate: int, encoding: str, now: int) -> Row:
    """Return a retained message as a row of the API; `now` is the time of the agenda in ms.

    The row has the first `truncate` bytes of the body, which the gateway encodes as `encoding`.
    """
    return {
        "topic": printable(swap(message.address.key)),
        "routing_key": printable(message.address.key),
        "exchange": message.address.exchange,
        "qos": int(message.qos),
        "payload_bytes": int(message.encoding.size(message.content)),
        "expires_in_ms": None if message.expires == 0 else max(0, int(message.expires) - now),
        "properties": json_properties(message.properties),
        "payload": message.encoding.first_bytes(message.content, truncate),
        "payload_encoding": encoding,
    }


async def clear(call: Call) -> Row:
    """Remove the retained messages whose topics match the MQTT filter `filter`.

    With `dry_run=true`, only count these messages. A message whose topic the user may not publish
    to is not removed, and counts as `refused`.
    """
    if "filter" not in call.query:
        raise bad_request(
            "the parameter 'filter' is missing: give the MQTT filter of the topics to clear; the "
            "filter '#' selects all topics"
        )
    selection = RetainedSelection(call)
    vhost, identity = selection.vhost, _identity(call, selection.vhost)
    identity.may("write", "exchange", EXCHANGE, vhost.name)
    keys: list[str] = []
    refused = 0
    async with call.slice() as work:
        for key in selection.matching():
            if key is None:
                if work.over:
                    await work.pause()
            elif identity.may_route(EXCHANGE, key, topic_of(key)):
                keys.append(key)
            else:
                refused += 1
    removed = len(keys)
    if not call.flag("dry_run"):
        removed = 0
        for at in range(0, len(keys), _REMOVED):
            removed += await _remove(call, vhost, keys[at : at + _REMOVED])
        if removed:
            facts = {"messages": removed}
            call.audit("clear", "retained messages", vhost.name, selection.filter, facts)
    if refused and not keys:
        raise ApiRefusal(
            403,
            "not_authorised",
            f"no retained message was removed, because user '{identity.name}' may not publish to "
            f"the topics that match '{selection.filter}' in vhost '{vhost.name}'",
        )
    return {"removed": removed, "refused": refused}


async def _remove(call: Call, vhost: VirtualHost, keys: list[str]) -> int:
    """Remove the retained messages with these routing keys; return the number removed."""
    return await call.make_durable(
        lambda ticket: sum(vhost.retained.remove(key, ticket) for key in keys)
    )
