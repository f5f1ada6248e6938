"""A trial import of definitions into an empty broker in memory; the real broker does not change.

If the document refers to an object of the real broker, or declares the object again, the object is
copied into the broker in memory first. So a trial reports what an import of the same document would
report.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.access.identity import Authenticator
from broker.broker import Broker
from broker.definitions.rabbitmq import Difference, Import, ImportReport
from broker.limits import BrokerLimits
from broker.routing.exchanges.base import ExchangeOptions
from broker.store.memory import MemoryStore


class TrialImport:
    """An import into a broker in memory; `real` is the broker that must not change, or None."""

    def __init__(self, check_hash: Callable[[str, str], str], real: Broker | None = None) -> None:
        limits = BrokerLimits() if real is None else real.limits
        #: The broker in memory that imports the objects.
        self.broker = Broker(MemoryStore(), Authenticator(), lambda: "", limits)
        self._original = real
        self._import = Import(self.broker, check_hash)

    @property
    def report(self) -> ImportReport:
        """The ImportReport about the objects that were imported so far."""
        return self._import.report

    def take(self, section: str, row: object) -> list[Difference]:
        """Import one object of a section into the broker in memory.

        Return the differences between the object in the document and the object in the broker.
        """
        if isinstance(row, dict) and self._original is not None:
            self._copy_known(self._original, section, row)
        return self._import.take(section, row)

    def _copy_known(self, real: Broker, section: str, row: dict[str, object]) -> None:
        """Copy the objects that `row` names from the real broker to the broker in memory.

        `row` is an object of the document. Objects that the real broker lacks are left out.
        """
        vhost, user = str(row.get("vhost", "")), str(row.get("user", ""))
        if vhost in real.vhosts:
            self.broker.create_vhost(vhost)
        if user in real.users.by_name and user not in self.broker.users.by_name:
            self.broker.users.define(user, real.users.by_name[user].password_hash, [])
        if section == "users":
            self._copy_role(real, str(row.get("role", "")))
        elif section == "roles":
            for vhost in _names(row.get("vhosts")):
                if vhost in real.vhosts:
                    self.broker.create_vhost(vhost)
        elif section == "exchanges":
            self._copy_exchange(real, vhost, str(row.get("name", "")))
        elif section == "queues":
            self._copy_queue(real, vhost, str(row.get("name", "")))
        elif section == "bindings":
            self._copy_exchange(real, vhost, str(row.get("source", "")))
            self._copy_exchange(real, vhost, str(row.get("destination", "")))
            self._copy_queue(real, vhost, str(row.get("destination", "")))

    def _copy_role(self, real: Broker, name: str) -> None:
        if name in real.users.roles.by_name and name not in self.broker.users.roles.by_name:
            self.broker.users.define_role(name, real.users.roles.by_name[name].grants)

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
        self.broker.vhosts[vhost].declare_exchange(name, known.kind, options)

    def _copy_queue(self, real: Broker, vhost: str, name: str) -> None:
        if vhost not in real.vhosts or name not in real.vhosts[vhost].queues:
            return
        if name in self.broker.vhosts[vhost].queues:
            return
        known = real.vhosts[vhost].queues[name]
        self.broker.vhosts[vhost].declare_queue(
            name,
            known.declared_durable,
            known.arguments.arguments,
            auto_delete=known.auto_delete,
        )


def _names(given: object) -> list[str]:
    return [str(name) for name in given] if isinstance(given, dict) else []
