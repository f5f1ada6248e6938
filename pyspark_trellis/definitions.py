"""Reads exchanges, queues and bindings from a definitions file: RabbitMQ's JSON, which `trellis
definitions export` writes.

A definitions file has no subscriptions of MQTT sessions; `topology` adds them. A `receiver` is
the text that identifies a final destination of messages: for a queue, the name of the queue; for an
MQTT session, or a group of sessions, the prefix `SESSION` and the name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from matching.grammar import AMQP, InvalidPattern
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.read_scope import ReadScope

#: The exchanges that every virtual host has.
PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
#: The exchange types that route by the topic alone.
BY_NAME: Final = ("direct", "fanout", "topic")
#: The prefix of an MQTT session's name among destinations; it distinguishes the session from a
#: queue of the same name. An MQTT client identifier cannot contain it [MQTT-1.5.4-2].
SESSION: Final = "\0"


def receiver_text(receiver: str) -> str:
    """Return the name of a receiver (a queue or an MQTT session) as text for users."""
    name = receiver.removeprefix(SESSION)
    return (
        receiver
        if name == receiver
        else f"{name} (MQTT {'group' if name.startswith('$share/') else 'session'})"
    )


@dataclass(frozen=True)
class BoundQueue:
    """A binding, or a subscription of an MQTT session.

    `number` is the index of the binding in the file. `kind` is the kind of its destination: queue,
    exchange or session. `key` is a pattern of `grammar` (amqp or mqtt). `lifetimes` are numbers of
    periods (`periods.Periods.lifetimes`): the binding begins to exist in the first, ceases in the
    second, begins again in the third, and so on. If `lifetimes` is empty, the binding always
    exists. `scope` is not None if a session does not receive all matching messages.
    """

    number: int
    vhost: str
    source: str
    destination: str
    kind: str
    key: str
    grammar: str = AMQP.name
    lifetimes: tuple[int, ...] = ()
    scope: ReadScope | None = None

    def __str__(self) -> str:
        return (
            f"'{self.key}' from exchange '{self.source}' "
            f"to {self.kind} '{self.destination}' in vhost '{self.vhost}'"
        )

    @property
    def to_exchange(self) -> bool:
        """True if the destination is an exchange."""
        return self.kind == "exchange"

    @property
    def receiver(self) -> str:
        """The queue or session to which the binding leads; meaningless if the destination is an
        exchange.
        """
        return SESSION + self.destination if self.kind == "session" else self.destination


@dataclass
class DefinedHost:
    """A virtual host: exchanges with their types, alternate exchanges, queues, and MQTT sessions
    with subscriptions.

    `lifetimes` has an entry for each queue that does not always exist: its name, and the numbers of
    the periods in which it begins and ceases to exist, as in `BoundQueue.lifetimes`.
    """

    types: dict[str, str] = field(default_factory=lambda: dict(PREDECLARED))
    alternates: dict[str, str] = field(default_factory=dict)
    matchers: dict[str, str] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    outgoing: dict[str, list[BoundQueue]] = field(default_factory=dict)
    lifetimes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def receivers(self) -> list[str]:
        """All queues and sessions, sorted."""
        return sorted([*self.queues, *(SESSION + name for name in self.sessions)])


@dataclass
class DefinitionsFile:
    """The contents of a definitions file, or of another source of definitions."""

    name: str
    hosts: dict[str, DefinedHost]
    bindings: list[BoundQueue]

    def add(
        self,
        vhost: str,
        source: str,
        destination: str,
        kind: str,
        key: str,
        grammar: str = AMQP.name,
        scope: ReadScope | None = None,
        lifetimes: tuple[int, ...] = (),
    ) -> None:
        """Add a binding; its source and its destination must exist.

        For the meaning of the other arguments, see BoundQueue.
        """
        number = len(self.bindings)
        bound = BoundQueue(number, vhost, source, destination, kind, key, grammar, lifetimes, scope)
        self.bindings.append(bound)
        self.hosts[vhost].outgoing.setdefault(source, []).append(bound)


def read(path: str | Path, options: Mapping[str, str] = MappingProxyType({})) -> DefinitionsFile:
    """Return the definitions in a file, or of a broker if `path` is a URL http://HOST:15672.

    `options` may have the credentials for the broker. Raises PipelineError, which names the
    position of the error.
    """
    if str(path).startswith(("http://", "https://")):
        from pyspark_trellis.remote import RemoteBroker

        broker = RemoteBroker.of(str(path), options)
        return parse(broker.document("/api/definitions"), broker.url)
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise PipelineError(f"cannot read the definitions in {path}: {error.strerror}") from None
    except ValueError as error:
        raise PipelineError(f"{path} is not JSON: {error}") from None
    return parse(document, str(path))


def parse(document: Any, name: str) -> DefinitionsFile:
    """Return the definitions in a decoded JSON document; `name` is its name in error texts.

    Raises PipelineError.
    """
    if not isinstance(document, dict):
        raise PipelineError(
            f"{name} is not a definitions file: expected a JSON object with lists of exchanges, "
            "queues and bindings"
        )
    hosts: dict[str, DefinedHost] = {
        row.get("name", "/"): DefinedHost() for row in _rows(document, "vhosts", name)
    } or {"/": DefinedHost()}
    definitions = DefinitionsFile(name, hosts, [])
    for at, row in enumerate(_rows(document, "exchanges", name)):
        where = f"{name}: exchanges[{at}]"
        host, exchange = _host(hosts, row, where), _text(row, "name", where)
        host.types[exchange] = _text(row, "type", where)
        arguments = row.get("arguments") or {}
        if isinstance(arguments.get("alternate-exchange"), str):
            host.alternates[exchange] = arguments["alternate-exchange"]
        if isinstance(arguments.get("x-matcher"), str):
            host.matchers[exchange] = arguments["x-matcher"]
    for at, row in enumerate(_rows(document, "queues", name)):
        where = f"{name}: queues[{at}]"
        _host(hosts, row, where).queues.add(_text(row, "name", where))
    for at, row in enumerate(_rows(document, "bindings", name)):
        _bind(definitions, row, f"{name}: bindings[{at}]")
    return definitions


def _bind(definitions: DefinitionsFile, row: Mapping[str, Any], where: str) -> None:
    host = _host(definitions.hosts, row, where)
    vhost = row.get("vhost", "/")
    source, destination = _text(row, "source", where), _text(row, "destination", where)
    to_exchange = row.get("destination_type", "queue") == "exchange"
    for exchange in [source, destination] if to_exchange else [source]:
        if exchange not in host.types:
            raise PipelineError(
                f"{where} names the exchange '{exchange}', which vhost '{vhost}' does not "
                f"have{_near(exchange, host.types)}"
            )
    if not to_exchange and destination not in host.queues:
        raise PipelineError(
            f"{where} names the queue '{destination}', which vhost '{vhost}' does not "
            f"have{_near(destination, host.queues)}"
        )
    key = _text(row, "routing_key", where)
    if host.types[source] == "topic":
        try:
            AMQP.check(key)
        except InvalidPattern as error:
            raise PipelineError(f"{where}: {error}") from None
    definitions.add(vhost, source, destination, "exchange" if to_exchange else "queue", key)


def _near(name: str, names: Any) -> str:
    matches = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; the nearest is '{matches[0]}'" if matches else ""


def _rows(document: Mapping[str, Any], section: str, name: str) -> list[dict[str, Any]]:
    rows = document.get(section, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PipelineError(f"{name}: '{section}' must be a list of objects")
    return rows


def _host(hosts: Mapping[str, DefinedHost], row: Mapping[str, Any], where: str) -> DefinedHost:
    vhost = row.get("vhost", "/")
    if vhost not in hosts:
        raise PipelineError(
            f"{where} names the vhost '{vhost}', which is not in the list vhosts of the file"
        )
    return hosts[vhost]


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise PipelineError(f"{where}: the field '{key}' must be a string, not {value!r}")
    return value
