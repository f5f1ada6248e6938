"""Reconstructs the bindings at a past time from the stream `$topology`, which a broker writes
beside a journal (docs/streams.md).

    ... snapshot, declare*, bind*, subscribe*, complete, bind, unsubscribe, delete, snapshot ...
                                               ^ from here on the state is known

The stream is replayed up to the requested time. If retention has removed the beginning of the
stream, the state is known from the end of the first remaining snapshot on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis.definitions import PREDECLARED, DefinedHost, DefinitionsFile
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import JournalStream
from pyspark_trellis.read_scope import scope_of

#: The name of the stream, and of its directory.
NAME: Final = "$topology"
DIRECTORY: Final = "%24topology"
_USED: Final = (
    "snapshot",
    "complete",
    "declare",
    "delete",
    "bind",
    "unbind",
    "subscribe",
    "unsubscribe",
)
_COLUMNS: Final = ("published_at", "vhost", "topic", "body")
_WHEN: Final = "%Y-%m-%d %H:%M:%S UTC"


@dataclass
class TopologyState:
    """The names and bindings of a virtual host at one point in time.

    The keys of `names` are pairs of kind and name. `at` is the time of the last row applied.
    """

    vhost: str
    at: datetime
    names: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    bindings: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def apply(self, event: str, facts: dict[str, Any]) -> None:
        """Apply a row of the stream: declare or delete a name, or add or remove a binding.

        `event` is the kind of the row, such as "bind", and `facts` has its other fields by name.
        The caller must not pass rows that mark the beginning or end of a snapshot. Raises KeyError
        if the row lacks a field.
        """
        if event in ("declare", "delete"):
            name = (facts["kind"], facts["name"])
            if event == "declare":
                self.names[name] = facts
            else:
                self.names.pop(name, None)
            return
        binding = binding_key(facts)
        if event in ("bind", "subscribe"):
            self.bindings[binding] = facts
        else:
            self.bindings.pop(binding, None)

    def subscriptions(self) -> Iterator[dict[str, Any]]:
        """Return the subscriptions of MQTT sessions and of shared-subscription groups.

        A group appears once, not once for each of its sessions.
        """
        return (facts for facts in self.bindings.values() if facts["destination_type"] == "session")

    def sessions(self) -> int:
        """Return the number of sessions and groups with subscriptions."""
        return len({facts["destination"] for facts in self.subscriptions()})


def binding_key(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields that identify a binding or a subscription. Raises KeyError."""
    return (
        facts["source"],
        facts["destination_type"],
        facts["destination"],
        facts["routing_key"],
        json.dumps(facts["arguments"], sort_keys=True),
    )


def replay(stream: JournalStream, until: datetime | None = None) -> TopologyState:
    """Return the names and bindings at the time `until`, as the topology stream has them.

    If `until` is None, return the names and bindings at the end of the stream. Raises PipelineError
    if the state of that time is not known.
    """
    bounds = stream.bounds()
    state: TopologyState | None = None
    known = False
    first_known: datetime | None = None
    for at, vhost, event, facts in rows_of(stream, bounds.first, bounds.next):
        if until is not None and at > until:
            if known or first_known is not None:
                break
        if state is None or (event == "snapshot" and (facts.get("restarted") or not known)):
            state, known = TopologyState(vhost, at), False
        try:
            if event == "complete":
                known = True
                first_known = first_known or at
            elif event != "snapshot":
                state.apply(event, facts)
        except (KeyError, TypeError):
            raise PipelineError(
                f"{stream.name} has a row '{event}' that this version of Trellis cannot read: use "
                "the version that wrote it"
            ) from None
        state.at = at
    if state is None or first_known is None:
        raise PipelineError(
            f"{stream.name} has no complete snapshot of the bindings: it was written by another "
            "version, or its beginning was removed; restart the broker, which writes a snapshot "
            "at its start"
        )
    if until is not None and first_known > until:
        raise PipelineError(
            f"{stream.name} has no bindings of {until:{_WHEN}}: its first complete snapshot is of "
            f"{first_known:{_WHEN}}, and retention keeps 256 MiB; ask for a later time"
        )
    if not known:
        raise PipelineError(
            f"{stream.name} has no complete snapshot at {state.at:{_WHEN}}: the broker was writing "
            "a snapshot after its start; ask for a later time"
        )
    return state


def rows_of(
    stream: JournalStream, low: int, high: int
) -> Iterator[tuple[datetime, str, str, dict[str, Any]]]:
    """Iterate over the stream's rows about declarations, bindings, subscriptions and snapshots.

    The rows have the offsets from `low` to before `high`. A row is (time, vhost, event, facts).
    Raises PipelineError.
    """
    wanted = pa.array(_USED)
    for piece in stream.pieces(low, high):
        for batch in piece.batches(_COLUMNS):
            rows = batch.filter(pc.is_in(batch.column("topic"), wanted))
            for at, vhost, event, body in zip(
                *(rows.column(name).to_pylist() for name in _COLUMNS), strict=True
            ):
                try:
                    facts = json.loads(body)
                except ValueError:
                    facts = None
                if not isinstance(facts, dict):
                    raise PipelineError(
                        f"{stream.name} has a row '{event}' that is not a JSON object, so it is "
                        f"not a topology stream: name the stream {NAME}"
                    )
                yield at, vhost, event, facts


def as_definitions(states: Iterable[TopologyState], name: str) -> DefinitionsFile:
    """Return the names and bindings of virtual hosts as a DefinitionsFile with the name `name`."""
    definitions = DefinitionsFile(name, {}, [])
    for state in states:
        host = definitions.hosts[state.vhost] = DefinedHost()
        for (kind, text), facts in state.names.items():
            if kind != "exchange":
                host.queues.update({text} - {NAME})
                continue
            host.types[text] = facts.get("type", PREDECLARED.get(text, ""))
            if facts.get("alternate") is not None:
                host.alternates[text] = facts["alternate"]
        for facts in state.bindings.values():
            # Bindings of a removed queue or exchange may remain for a moment.
            kind, target = facts["destination_type"], facts["destination"]
            exists = target in (host.types if kind == "exchange" else host.queues)
            if facts["source"] in host.types and kind != "session" and exists:
                definitions.add(
                    state.vhost,
                    facts["source"],
                    target,
                    "exchange" if kind == "exchange" else "queue",
                    facts["routing_key"],
                    facts["grammar"],
                )
    return with_subscriptions(definitions, states)


def with_subscriptions(
    definitions: DefinitionsFile, states: Iterable[TopologyState]
) -> DefinitionsFile:
    """Return a copy of the definitions to which the MQTT subscriptions in `states` are added."""
    extended = deepcopy(definitions)
    for state in states:
        host = extended.hosts.get(state.vhost)
        if host is None:
            continue
        for facts in state.subscriptions():
            if facts["source"] in host.types:
                host.sessions.add(facts["destination"])
                extended.add(
                    state.vhost,
                    facts["source"],
                    facts["destination"],
                    "session",
                    facts["routing_key"],
                    facts["grammar"],
                    scope_of(facts),
                )
    return extended
