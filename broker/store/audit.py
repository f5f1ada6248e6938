"""The audit trail: which user changed which definition, from which address, by which protocol.

    AMQP method, HTTP request      with trail.by(Actor(...)): the change
    the change                     Store.define(entry) --> AuditTrail.changed
    purge, close, delete session   AuditTrail.acted
                                   --> `write` gets the record, which the server writes to a file

Only changes that survive a restart are recorded: changes of stored definitions, by users and by the
broker itself (such as the deletion of an auto-delete queue), and the actions of users that cannot
be undone. A restart and a standby record nothing: they apply changes that are recorded already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from broker.store.entries import Defined, Undefined

#: The kinds of definitions that are recorded. The sessions and subscriptions of MQTT clients are
#: stored as well, but they change with each connection.
KINDS: Final = frozenset(
    (
        *("vhost", "user", "role", "permission", "policy", "parameter"),
        *("exchange", "queue", "binding"),
    )
)
#: The kinds whose definitions may contain secrets, with the fields that are recorded.
PUBLIC_FIELDS: Final = {"user": ("tags", "limits", "role"), "parameter": ("component",)}

#: The kinds of definitions that belong to no virtual host.
BROKER_WIDE: Final = ("user", "role", "vhost")

AuditRecord = dict[str, object]


class Actor:
    """The user that makes a change, with the address and the protocol of the user's client."""

    def __init__(self, user: str, address: str, protocol: str) -> None:
        self.user = user
        self.address = address
        self.protocol = protocol


#: The actor of changes that the broker itself makes: it deletes auto-delete objects, unused queues,
#: and the contents of a deleted virtual host.
BROKER: Final = Actor("", "", "broker")


class AuditTrail:
    """Makes a record of each change, and passes the record to `write`."""

    def __init__(self, write: Callable[[AuditRecord], None]) -> None:
        self._write = write
        self._actor = BROKER

    @contextmanager
    def by(self, actor: Actor) -> Iterator[None]:
        """Record, as a context manager, all changes in the `with` body as changes by `actor`.

        The body must not await.
        """
        before, self._actor = self._actor, actor
        try:
            yield
        finally:
            self._actor = before

    @property
    def actor(self) -> Actor:
        """The user that makes the changes now; BROKER if the broker itself makes them."""
        return self._actor

    def changed(self, entry: Defined | Undefined, shown: Mapping[str, object] | None) -> None:
        """Record the change of a definition.

        `shown` has the fields to record instead of the fields of `entry`; None if these are
        recorded. Bindings need `shown`, because their stored fields have only the numbers of the
        exchange and the destination.
        """
        if entry.kind not in KINDS:
            return
        facts: Mapping[str, object] = {}
        if shown is not None:
            facts = shown
        elif isinstance(entry, Defined):
            facts = entry.definition
        if entry.kind in PUBLIC_FIELDS:
            facts = {name: facts[name] for name in PUBLIC_FIELDS[entry.kind] if name in facts}
        name = "" if shown is not None else entry.name
        vhost = "" if entry.kind in BROKER_WIDE else entry.vhost
        action = "set" if isinstance(entry, Defined) else "delete"
        self.acted(action, entry.kind, vhost, name, facts)

    def acted(
        self,
        action: str,
        kind: str,
        vhost: str,
        name: str,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        """Record an action, such as "purge", on the object `name`.

        `facts` are further fields to record. The record has no field for an empty `vhost` or
        `name`.
        """
        actor = self._actor
        record: AuditRecord = {"action": action, "kind": kind}
        named = {"vhost": vhost, "name": name, "user": actor.user, "address": actor.address}
        record |= {field: value for field, value in named.items() if value}
        record["protocol"] = actor.protocol
        if facts:
            record["definition" if action == "set" else "facts"] = dict(facts)
        self._write(record)
