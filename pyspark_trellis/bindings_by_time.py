"""Makes definitions in which each binding has the periods in which it existed.

The jobs then route each message by the bindings that existed in the minute in which the broker
received the message (`routing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark_trellis.definitions import PREDECLARED, BoundQueue, DefinedHost, DefinitionsFile
from pyspark_trellis.periods import Existence, Periods, RowSplits
from pyspark_trellis.read_scope import ReadScope, scope_of
from pyspark_trellis.topology import NAME
from pyspark_trellis.topology_history import TopologyHistory

#: Source, destination, kind of the destination, key, grammar and scope of a binding.
_Identity = tuple[str, str, str, str, str, ReadScope | None]


def splits_of(histories: Iterable[TopologyHistory]) -> RowSplits:
    """Return how to divide the messages of a topic: by period and, for some users, by publisher.

    Within a period, no binding, exchange, queue or session begins or ceases to exist. Messages of a
    user are counted apart if a session does not receive this user's messages (No Local).
    """
    existences: list[Existence] = []
    users = set()
    for history in histories:
        existences += [*history.bindings.values(), *history.names.values()]
        for each in history.bindings.values():
            scope = scope_of(each.facts)
            if scope is not None and scope.not_of is not None:
                users.add(scope.not_of)
    return RowSplits(Periods(existences), frozenset(users))


def by_time(
    present: DefinitionsFile,
    histories: Iterable[TopologyHistory],
    periods: Periods,
    all_bindings: bool,
    ended_receivers: bool,
) -> DefinitionsFile:
    """Return the definitions with the periods in which each binding existed.

    The bindings of `present` come first and keep their numbers. Bindings that do not
    exist any more follow. If `all_bindings` is false, only subscriptions of sessions have periods,
    because the other bindings do not come from the histories. If `ended_receivers` is false, queues
    and sessions that do not exist any more are left out.
    """
    definitions = DefinitionsFile(present.name, {}, [])
    lifetimes: dict[str, dict[_Identity, tuple[int, ...]]] = {}
    known = {history.vhost: history for history in histories}
    for vhost, host in present.hosts.items():
        definitions.hosts[vhost] = replace(
            host,
            types=dict(host.types),
            queues=set(host.queues),
            sessions=set(host.sessions),
            outgoing={},
            lifetimes={},
        )
        if vhost in known:
            lifetimes[vhost] = _lifetimes(known[vhost], periods, all_bindings)
    present_bindings = set()
    for each in present.bindings:
        identity = _identity(each)
        present_bindings.add((each.vhost, identity))
        _add(definitions, each, lifetimes.get(each.vhost, {}).get(identity, ()))
    for vhost, lifetimes_of in lifetimes.items():
        host = definitions.hosts[vhost]
        if all_bindings:
            _add_names(host, known[vhost], periods, ended_receivers)
        for identity, periods_of in lifetimes_of.items():
            if (vhost, identity) in present_bindings:
                continue
            source, destination, kind, key, grammar, scope = identity
            if kind == "session" and ended_receivers:
                host.sessions.add(destination)
            names = {"exchange": host.types, "session": host.sessions}.get(kind, host.queues)
            if periods_of and source in host.types and destination in names:
                bound = BoundQueue(0, vhost, source, destination, kind, key, grammar, (), scope)
                _add(definitions, bound, periods_of)
    return definitions


def _add(definitions: DefinitionsFile, bound: BoundQueue, lifetimes: tuple[int, ...]) -> None:
    # A binding that begins to exist in period 0, the first, and never ceases, always exists. Empty
    # `lifetimes` mean the same, and save a comparison with the period of each message.
    definitions.add(
        bound.vhost,
        bound.source,
        bound.destination,
        bound.kind,
        bound.key,
        bound.grammar,
        bound.scope,
        () if lifetimes == (0,) else lifetimes,
    )


def _identity(bound: BoundQueue) -> _Identity:
    return (bound.source, bound.destination, bound.kind, bound.key, bound.grammar, bound.scope)


def _lifetimes(
    history: TopologyHistory, periods: Periods, all_bindings: bool
) -> dict[_Identity, tuple[int, ...]]:
    groups: dict[_Identity, list[Existence]] = defaultdict(list)
    for each in history.bindings.values():
        facts = each.facts
        kind = facts["destination_type"]
        if kind == "session" or all_bindings:
            groups[
                facts["source"],
                facts["destination"],
                kind if kind in ("exchange", "session") else "queue",
                facts["routing_key"],
                facts["grammar"],
                scope_of(facts) if kind == "session" else None,
            ].append(each)
    return {identity: periods.lifetimes(group) for identity, group in groups.items()}


def _add_names(
    host: DefinedHost, history: TopologyHistory, periods: Periods, ended_receivers: bool
) -> None:
    """Add the exchanges of `history` and their alternates; add its queues and their lifetimes.

    Queues that `host` does not have any more are added only with `ended_receivers`.
    """
    for (kind, name), existence in history.names.items():
        facts: Mapping[str, Any] = existence.facts
        if kind == "exchange":
            host.types.setdefault(name, facts.get("type", PREDECLARED.get(name, "")))
            if facts.get("alternate") is not None:
                host.alternates.setdefault(name, facts["alternate"])
        elif name != NAME and (ended_receivers or name in host.queues):
            lifetimes = periods.lifetimes([existence])
            if lifetimes != (0,):
                host.lifetimes[name] = lifetimes
            host.queues.add(name)
