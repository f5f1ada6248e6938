"""Reads the definitions of shovels and federation links from the values of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from broker.names import nearest
from protocols.amqp.codec.tables import write_table
from trellis.bridge.amqp_uri import AmqpUri, parse_uri
from trellis.bridge.contract import FEDERATION, SHOVEL, AmqpSource, AmqpTarget, Shovel

#: Defaults of RabbitMQ: unacknowledged messages, and seconds before the next attempt to connect.
PREFETCH: Final = 1000
RECONNECT_DELAY: Final = 5.0
PREFETCH_MAX: Final = 10_000
#: Largest size in bytes of the encoded headers that `dest-publish-properties` may set.
HEADERS_MAX: Final = 32_768
#: Largest number of URIs of one end, and of binding keys of a federated exchange.
LIST_MAX: Final = 100
#: Keys of a shovel in RabbitMQ before version 3.7, and the present names of these keys.
_OLD_NAMES: Final = {
    "prefetch-count": "src-prefetch-count",
    "delete-after": "src-delete-after",
    "add-forward-headers": "dest-add-forward-headers",
    "publish-properties": "dest-publish-properties",
}
_KNOWN: Final = frozenset(
    {
        *("src-protocol", "src-uri", "src-queue", "src-queue-args", "src-consumer-args"),
        *("src-exchange", "src-exchange-key", "src-prefetch-count", "src-delete-after"),
        *("dest-protocol", "dest-uri", "dest-queue", "dest-queue-args", "dest-exchange"),
        *("dest-exchange-key", "dest-add-forward-headers", "dest-add-timestamp-header"),
        *("dest-publish-properties", "ack-mode", "reconnect-delay", "rate"),
        *("src-predeclared", "dest-predeclared"),
    }
)
#: Properties that `dest-publish-properties` may set: texts, and numbers with their largest value.
_TEXT_PROPERTIES: Final = frozenset(
    {
        *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
        *("message_id", "type", "user_id", "app_id", "cluster_id"),
    }
)
_NUMBER_PROPERTIES: Final = {"delivery_mode": 2, "priority": 255, "timestamp": (1 << 63) - 1}
Value = Mapping[str, Any]


def shovel_of(vhost: str, name: str, value: object) -> Shovel:
    """Return the shovel that a parameter of the component `shovel` defines. Raises ValueError."""
    given = _renamed(_table(value))
    for key in given:
        if key not in _KNOWN:
            known = nearest(key, sorted(_KNOWN))
            raise ValueError(f"unknown key '{key[:255]}'; the nearest is {known}")
    for key in ("src-protocol", "dest-protocol"):
        if given.get(key, "amqp091") != "amqp091":
            raise ValueError(f"'{key}' must be amqp091, because only AMQP 0-9-1 is supported")
    if given.get("ack-mode", "on-confirm") not in ("on-confirm", "on-publish", "no-ack"):
        raise ValueError("'ack-mode' must be on-confirm, on-publish or no-ack")
    queue, exchange = _text(given, "src-queue"), _text(given, "src-exchange")
    if (queue is None) == (exchange is None):
        raise ValueError("exactly one of 'src-queue' and 'src-exchange' must be set")
    if given.get("dest-queue") is not None and given.get("dest-exchange") is not None:
        raise ValueError("only one of 'dest-queue' and 'dest-exchange' may be set")
    return Shovel(
        kind=SHOVEL,
        vhost=vhost,
        name=name,
        source=AmqpSource(
            _uris(given, "src-uri"),
            queue or "",
            exchange or "",
            (_text(given, "src-exchange-key") or "",),
            _json(given, "src-queue-args"),
            _json(given, "src-consumer-args"),
        ),
        target=AmqpTarget(
            _uris(given, "dest-uri"),
            _text(given, "dest-queue") or "",
            _text(given, "dest-exchange"),
            _text(given, "dest-exchange-key"),
            _json(given, "dest-queue-args"),
            _properties(given),
            bool(given.get("dest-add-forward-headers", False)),
            bool(given.get("dest-add-timestamp-header", False)),
        ),
        prefetch=_prefetch(given, "src-prefetch-count"),
        reconnect_delay=_seconds(given, "reconnect-delay"),
        rate=_number(given, "rate", 0.0, " messages per second"),
        delete_after=_delete_after(given),
    )


def federation_of(
    vhost: str, upstream: str, value: object, exchange: str, kind: str, node: str
) -> Shovel:
    """Return the link of a federated exchange of the type `kind` to an upstream. Raises ValueError.

    `value` is the value of a parameter of the component `federation-upstream`. The key `bindings`
    is an addition of Trellis: a list of binding keys for the exchange of the upstream. `node` is
    the name of this broker.
    """
    given = _table(value)
    keys = given.get("bindings", ["#"] if kind == "topic" else [""])
    if kind == "direct" and "bindings" not in given:
        raise ValueError(
            f"exchange '{exchange}' is a direct exchange, so 'bindings' must list its routing keys"
        )
    if (
        not isinstance(keys, list)
        or not keys
        or len(keys) > LIST_MAX
        or not all(isinstance(key, str) for key in keys)
    ):
        raise ValueError(f"'bindings' must be a list of 1 to {LIST_MAX} binding keys")
    theirs = _text(given, "exchange") or exchange
    arguments: dict[str, object] = {}
    for key, argument in (("expires", "x-expires"), ("message-ttl", "x-message-ttl")):
        if given.get(key) is not None:
            arguments[argument] = int(_number(given, key, 0))
    return Shovel(
        kind=FEDERATION,
        vhost=vhost,
        name=f"{upstream} -> {exchange}",
        source=AmqpSource(
            _uris(given, "uri"),
            f"federation: {theirs} -> {node}:{vhost}:{exchange}",
            theirs,
            tuple(keys),
            msgspec.json.encode(arguments).decode(),
            "{}",
            kind,
        ),
        target=AmqpTarget(("amqp://",), "", exchange, None, "{}", "{}"),
        prefetch=_prefetch(given, "prefetch-count"),
        reconnect_delay=_seconds(given, "reconnect-delay"),
        rate=0.0,
        delete_after=None,
        max_hops=max(1, int(_number(given, "max-hops", 1))),
    )


def _table(value: object) -> Value:
    if not isinstance(value, dict):
        raise ValueError("the value must be a JSON object")
    return value


def _renamed(given: Value) -> Value:
    return {_OLD_NAMES.get(key, key): value for key, value in given.items()}


def _text(given: Value, key: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode()) > 255:
        raise ValueError(f"'{key}' must be a text of at most 255 bytes")
    return value


def _uris(given: Value, key: str) -> tuple[str, ...]:
    value = given.get(key)
    uris = [value] if isinstance(value, str) else value
    if not isinstance(uris, list) or not uris or len(uris) > LIST_MAX:
        raise ValueError(f"'{key}' must be an AMQP URI, or a list of 1 to {LIST_MAX} AMQP URIs")
    for uri in uris:
        if not isinstance(uri, str):
            raise ValueError(f"'{key}' must be an AMQP URI, or a list of 1 to {LIST_MAX} AMQP URIs")
        try:
            parse_uri(uri)
        except ValueError as error:
            raise ValueError(f"'{key}': {error}") from None
    return tuple(uris)


def _number(given: Value, key: str, default: float, unit: str = "") -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError(f"'{key}' must be a number of 0 or more, and below 1e12{unit}")
    return float(value)


def _seconds(given: Value, key: str) -> float:
    """Return the delay in seconds under `key`, raised to 0.1 s if it is shorter.

    So a link whose connections fail at once connects at most 10 times per second.
    """
    return max(0.1, _number(given, key, RECONNECT_DELAY, " seconds"))


def _prefetch(given: Value, key: str) -> int:
    value = int(_number(given, key, PREFETCH))
    return min(value, PREFETCH_MAX) or PREFETCH_MAX


def _json(given: Value, key: str) -> str:
    value = given.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"'{key}' must be a JSON object")
    return msgspec.json.encode(value).decode()


def _properties(given: Value) -> str:
    text = _json(given, "dest-publish-properties")
    for name, value in msgspec.json.decode(text).items():
        if problem := _problem_of(name, value):
            raise ValueError(f"'dest-publish-properties': the property '{name}' {problem}")
    return text


def _problem_of(name: str, value: object) -> str:
    """Return why a property of a message cannot have this value; "" if the value is valid."""
    if name in _TEXT_PROPERTIES:
        right = isinstance(value, str) and len(value.encode()) <= 255
        return "" if right else "must be a text of at most 255 bytes"
    if (most := _NUMBER_PROPERTIES.get(name)) is not None:
        right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
        return "" if right else f"must be a whole number from 0 to {most}"
    if name == "headers":
        return _problem_of_headers(value)
    return "is unknown"


def _problem_of_headers(value: object) -> str:
    """Return why a message cannot have these headers; "" if the headers are valid."""
    if not isinstance(value, dict):
        return "must be a JSON object"
    try:
        size = len(write_table(value))
    except (ValueError, OverflowError) as error:
        return f"cannot be encoded: {error}"
    return "" if size <= HEADERS_MAX else f"must have at most {HEADERS_MAX} bytes, not {size}"


def _delete_after(given: Value) -> int | None:
    """Return the number of messages after which the shovel ends; None if it does not end.

    0 stands for the number of messages in the queue at the start. Raises ValueError.
    """
    value = given.get("src-delete-after", "never")
    if value == "never":
        return None
    if value == "queue-length":
        if given.get("src-queue") is None:
            raise ValueError("'src-delete-after' can be queue-length only with 'src-queue'")
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("'src-delete-after' must be never, queue-length or a number of messages")
    return value


def shown_uri(uris: tuple[str, ...]) -> str:
    """Return the first URI without credentials and options. The URIs must be valid."""
    uri: AmqpUri = parse_uri(uris[0])
    return uri.shown
