"""A trial import of definitions into an empty broker in memory; the real broker does not change.

If the document refers to an object of the real broker, or declares the object again, the object is
copied into the broker in memory first. So a trial reports what an import of the same document would
report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.access.identity import Authenticator
from broker.broker import Broker
from broker.definitions.changes import ImportChange, change_of, label_of, state_of
from broker.definitions.rabbitmq import REFUSED, Difference, Import, ImportReport
from broker.limits import BrokerLimits
from broker.routing.exchanges.base import ExchangeOptions
from broker.store.memory import MemoryStore

#: Largest number of changes that a trial keeps.
CHANGES_MAX: Final = 1_000


class TrialImport:
    """An import into a broker in memory; `real` is the broker that must not change, or None."""

    def __init__(self, check_hash: Callable[[str, str], str], real: Broker | None = None) -> None:
        limits = BrokerLimits() if real is None else real.limits
        #: The broker in memory that imports the objects.
        self.broker = Broker(MemoryStore(), Authenticator(), lambda: "", limits)
        self._original = real
        #: The virtual hosts that were copied, and the (virtual host, user) of copied permissions.
        self._copied: set[str] = set()
        self._granted: set[tuple[str, str]] = set()
        self._import = Import(self.broker, check_hash)
        #: The objects of the real broker that an import changes, by their labels: at most
        #: CHANGES_MAX. `more_changes` counts the others.
        self.changes: dict[str, ImportChange] = {}
        self.more_changes = 0

    @property
    def report(self) -> ImportReport:
        """The ImportReport about the objects that were imported so far."""
        return self._import.report

    def take(self, section: str, row: object) -> list[Difference]:
        """Import one object of a section into the broker in memory.

        Return the differences between the object in the document and the object in the broker. If
        an import would change an object of the real broker, the change is added to `changes`.
        """
        real = self._original
        if not isinstance(row, dict) or real is None:
            return self._import.take(section, row)
        before = state_of(real, section, row)
        self._copy_known(real, section, row)
        findings = self._import.take(section, row)
        if before is not None and not any(finding.kind == REFUSED for finding in findings):
            self._add_change(
                label_of(section, row),
                change_of(section, row, before, state_of(self.broker, section, row)),
            )
        return findings

    def _add_change(self, label: str, change: ImportChange | None) -> None:
        """Set the change of the object `label` in `changes`; None removes an earlier change.

        If a document names an object twice, the last call for this object decides. If `changes` has
        CHANGES_MAX changes already, the change of a further object is counted, but not kept.
        """
        if change is None:
            self.changes.pop(label, None)
        elif len(self.changes) < CHANGES_MAX or label in self.changes:
            self.changes[label] = change
        else:
            self.more_changes += 1

    def _copy_known(self, real: Broker, section: str, row: dict[str, object]) -> None:
        """Copy the objects that `row` names from the real broker to the broker in memory.

        `row` is an object of the document. Objects that the real broker lacks are left out.
        """
        vhost, user = str(row.get("vhost", "")), str(row.get("user", ""))
        self._copy_vhost(real, str(row.get("name", "")) if section == "vhosts" else vhost)
        self._copy_user(real, user, vhost)
        if section == "users":
            self._copy_user(real, str(row.get("name", "")), "")
            self._copy_role(real, str(row.get("role", "")))
        elif section == "roles":
            for name in _names(row.get("vhosts")):
                self._copy_vhost(real, name)
        elif section == "exchanges":
            self._copy_exchange(real, vhost, str(row.get("name", "")))
        elif section == "queues":
            self._copy_queue(real, vhost, str(row.get("name", "")))
        elif section == "bindings":
            self._copy_exchange(real, vhost, str(row.get("source", "")))
            self._copy_exchange(real, vhost, str(row.get("destination", "")))
            self._copy_queue(real, vhost, str(row.get("destination", "")))

    def _copy_vhost(self, real: Broker, name: str) -> None:
        """Copy a virtual host with its options, policies, and counts of queues and exchanges.

        The options, policies and counts decide whether the virtual host accepts a queue.
        """
        if name not in real.vhosts or name in self._copied:
            return
        self._copied.add(name)
        known = real.vhosts[name]
        vhost = self.broker.create_vhost(name, None, known.options)
        vhost.policies.by_name.update(known.policies.by_name)
        vhost.policies.operator_by_name.update(known.policies.operator_by_name)
        vhost.declarations.uncopied_queues = len(known.queues)
        vhost.declarations.uncopied_exchanges = len(known.exchanges) - len(vhost.exchanges)

    def _copy_user(self, real: Broker, name: str, vhost: str) -> None:
        """Copy a user with its role, and with its permission in a virtual host."""
        known, users = real.users.by_name.get(name), self.broker.users
        if known is None:
            return
        if name not in users.by_name:
            self._copy_role(real, known.role_name)
            users.define(name, known.password_hash, [], None, known.limits, known.role_name)
        permission = known.permissions.get(vhost)
        if permission is not None and (vhost, name) not in self._granted:
            self._granted.add((vhost, name))
            users.set_permission(vhost, name, *permission)

    def _copy_role(self, real: Broker, name: str) -> None:
        if name in real.users.roles.by_name and name not in self.broker.users.roles.by_name:
            # A stored role may have a rule that a new role could not have.
            self.broker.users.roles.add(name, real.users.roles.by_name[name].row)

    def _copy_exchange(self, real: Broker, vhost: str, name: str) -> None:
        if vhost not in real.vhosts or name not in real.vhosts[vhost].exchanges:
            return
        if name in self.broker.vhosts[vhost].exchanges:
            return
        known = real.vhosts[vhost].exchanges[name]
        options = ExchangeOptions(
            known.options.durable,
            known.options.auto_delete,
            known.options.internal,
            known.options.arguments,
        )
        self.broker.vhosts[vhost].declarations.uncopied_exchanges -= 1
        self.broker.vhosts[vhost].declare_exchange(name, known.kind, options)

    def _copy_queue(self, real: Broker, vhost: str, name: str) -> None:
        if vhost not in real.vhosts or name not in real.vhosts[vhost].queues:
            return
        declarations = self.broker.vhosts[vhost].declarations
        if name in declarations.queues:
            return
        known = real.vhosts[vhost].queues[name]
        declarations.uncopied_queues -= 1
        # The queue exists, so neither a limit nor a check of its arguments can refuse it.
        queue = declarations.add_queue(name, known.durable, known.auto_delete, known.arguments, 0)
        queue.declared_durable = known.declared_durable
        queue.exclusive_to = known.exclusive_to


def _names(given: object) -> list[str]:
    return [str(name) for name in given] if isinstance(given, dict) else []
