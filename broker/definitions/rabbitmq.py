"""Import and export of definitions in RabbitMQ's JSON format.

    {users, vhosts, permissions, topic_permissions, policies, exchanges, queues, bindings}
    {topic_rules}   an extension of Trellis: ordered topic rules

Each section is a list of objects.

The import is idempotent. A user, permission, topic rule or policy that exists is replaced. An
exchange or a queue that exists with other properties stays as it is, and is reported. An invalid
object is not imported, and is reported. All other objects are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.broker import Broker
from broker.errors import BrokerError, PreconditionFailed
from broker.nesting import NESTING_MAX, is_nested_too_deep
from broker.queues.destination import Destination
from broker.queues.policies import policy_of
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost

Row = Mapping[str, object]

#: The sections that are imported, in the order of their dependencies.
SECTIONS: Final = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "topic_rules",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)
#: Sections of RabbitMQ's documents that are not imported; the report names each that is not empty.
UNSUPPORTED: Final = ("parameters", "global_parameters", "operator_policies")


class ImportReport:
    """The result of an import: how many objects of each section were imported, and the refusals.

    Each refusal is a text that names the object, and the reason.
    """

    def __init__(self) -> None:
        self.imported: dict[str, int] = {}
        self.refused: list[str] = []


def import_(
    broker: Broker,
    document: object,
    check_hash: Callable[[str, str], str],
    ticket: Ticket | None = None,
) -> ImportReport:
    """Import the definitions of a decoded JSON document, and return a report.

    `check_hash` gets a password hash and the name of its algorithm as RabbitMQ writes them, and
    returns the hash as the broker stores it; it raises ValueError if the hash is invalid. Raise
    PreconditionFailed if the document is not a JSON object.
    """
    if not isinstance(document, dict):
        raise PreconditionFailed(
            "definitions must be a JSON object with lists named " + ", ".join(SECTIONS)
        )
    import_run = Import(broker, check_hash, ticket)
    for section in SECTIONS:
        rows = document.get(section, [])
        if not isinstance(rows, list):
            import_run.report.refused.append(f"{section}: not a list")
            continue
        for row in rows:
            import_run.take(section, row)
    for section in UNSUPPORTED:
        if document.get(section):
            import_run.refuse_section(section)
    return import_run.report


class Import:
    """An import into one broker, object by object: a caller can let other work run in between.

    The sections must come in the order of SECTIONS.
    """

    def __init__(
        self,
        broker: Broker,
        check_hash: Callable[[str, str], str],
        ticket: Ticket | None = None,
    ) -> None:
        self._broker = broker
        self._check_hash = check_hash
        self._ticket = ticket
        #: The result so far.
        self.report = ImportReport()
        #: The number of objects of each section so far.
        self._seen: dict[str, int] = {}

    def take(self, section: str, row: object) -> None:
        """Import one object of a section; count the object, or its refusal, in the report."""
        at = self._seen.get(section, 0)
        self._seen[section] = at + 1
        report = self.report
        try:
            if not isinstance(row, dict):
                raise PreconditionFailed("not an object")
            if is_nested_too_deep(row):
                raise PreconditionFailed(f"nested more than {NESTING_MAX} levels deep")
            self.add(section, row)
        except (BrokerError, ValueError) as error:
            name = (
                row.get("name", row.get("user", row.get("source", "")))
                if isinstance(row, dict)
                else ""
            )
            report.refused.append(f"{section}[{at}] {name!r}: {error}")
        else:
            report.imported[section] = report.imported.get(section, 0) + 1

    def refuse_section(self, section: str) -> None:
        """Report a section that is not imported."""
        self.report.refused.append(f"{section}: not supported by this broker")

    def add(self, section: str, row: Row) -> None:
        """Import one object of a section. Raise BrokerError or ValueError if it is refused."""
        if section == "vhosts":
            self._broker.create_vhost(_text(row, "name"), self._ticket)
        elif section == "users":
            self._add_user(row)
        elif section == "permissions":
            self._vhost(row)
            self._broker.users.set_permission(
                _text(row, "vhost"),
                _text(row, "user"),
                _text(row, "configure"),
                _text(row, "write"),
                _text(row, "read"),
                self._ticket,
            )
        elif section == "topic_permissions":
            self._vhost(row)
            self._broker.users.set_topic_permission(
                _text(row, "vhost"),
                _text(row, "user"),
                _text(row, "exchange"),
                (_text(row, "write"), _text(row, "read")),
                self._ticket,
            )
        elif section == "topic_rules":
            self._vhost(row)
            rules = row.get("rules")
            if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
                raise PreconditionFailed(f"'rules' is {rules!r}, not a list of strings")
            self._broker.users.set_rules(
                _text(row, "vhost"), _text(row, "user"), [str(rule) for rule in rules], self._ticket
            )
        elif section == "policies":
            vhost = self._vhost(row)
            vhost.declarations.set_policy(
                policy_of(vhost.name, _text(row, "name"), row), self._ticket
            )
        elif section == "exchanges":
            options = ExchangeOptions(
                _flag(row, "durable"),
                _flag(row, "auto_delete"),
                _flag(row, "internal"),
                _table(row, "arguments"),
            )
            self._vhost(row).declare_exchange(
                _text(row, "name"), _text(row, "type"), options, self._ticket
            )
        elif section == "queues":
            self._vhost(row).declare_queue(
                _text(row, "name"),
                _flag(row, "durable"),
                _table(row, "arguments"),
                None,
                False,
                _flag(row, "auto_delete"),
                self._ticket,
            )
        else:
            self._add_binding(row)

    def _add_user(self, row: Row) -> None:
        tags = row.get("tags", [])
        if isinstance(tags, str):
            tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
        password_hash = self._check_hash(
            _text(row, "password_hash"), str(row.get("hashing_algorithm", ""))
        )
        self._broker.users.define(
            _text(row, "name"),
            password_hash,
            [str(tag) for tag in tags] if isinstance(tags, list) else [],
            self._ticket,
        )

    def _add_binding(self, row: Row) -> None:
        vhost = self._vhost(row)
        source, name = _text(row, "source"), _text(row, "destination")
        if not source:
            raise PreconditionFailed(
                "the default exchange leads to every queue, and takes no bindings"
            )
        target: Destination = (
            vhost.exchange(name) if row.get("destination_type") == "exchange" else vhost.queue(name)
        )
        vhost.bind(
            source,
            Binding(_text(row, "routing_key"), target, arguments=_table(row, "arguments")),
            self._ticket,
        )

    def _vhost(self, row: Row) -> VirtualHost:
        name = _text(row, "vhost")
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            raise PreconditionFailed(f"there is no vhost '{name}'")
        return vhost


def export(broker: Broker, show_hash: Callable[[str], tuple[str, str]]) -> dict[str, list[Row]]:
    """Return all durable definitions by section.

    `show_hash` gets a password hash as the broker stores it, and returns the hash and the name of
    its algorithm as RabbitMQ writes them.
    """
    document: dict[str, list[Row]] = {section: [] for section in SECTIONS}
    for section, row in export_rows(broker, show_hash):
        document[section].append(row)
    return document


def export_rows(
    broker: Broker, show_hash: Callable[[str], tuple[str, str]]
) -> Iterator[tuple[str, Row]]:
    """Yield all durable definitions one by one, each with the name of its section.

    There may be many definitions, so a caller can let other work run in between. `show_hash` gets a
    password hash as the broker stores it, and returns the hash and the name of its algorithm as
    RabbitMQ writes them.
    """
    vhosts = list(broker.vhosts.values())
    users = list(broker.users.by_name.values())
    for vhost in vhosts:
        yield "vhosts", {"name": vhost.name}
    for user in users:
        password_hash, algorithm = show_hash(user.password_hash)
        yield (
            "users",
            {
                "name": user.name,
                "password_hash": password_hash,
                "hashing_algorithm": algorithm,
                "tags": list(user.tags),
            },
        )
    for user in users:
        for name, (configure, write, read) in list(user.permissions.items()):
            yield (
                "permissions",
                {
                    "user": user.name,
                    "vhost": name,
                    "configure": configure,
                    "write": write,
                    "read": read,
                },
            )
        for name, topics in list(user.topics.items()):
            for exchange_name, (write, read) in topics.items():
                yield (
                    "topic_permissions",
                    {
                        "user": user.name,
                        "vhost": name,
                        "exchange": exchange_name,
                        "write": write,
                        "read": read,
                    },
                )
        for name, rules in list(user.rules.items()):
            yield "topic_rules", {"user": user.name, "vhost": name, "rules": list(rules)}
    for vhost in vhosts:
        for policy in list(vhost.policies.by_name.values()):
            yield "policies", {"vhost": vhost.name, "name": policy.name, **policy.row}
        for exchange in list(vhost.exchanges.values()):
            if _is_durable(exchange):
                yield "exchanges", _exchange_row(vhost, exchange)
        for queue in list(vhost.queues.values()):
            if queue.durable:
                yield (
                    "queues",
                    {
                        "name": queue.name,
                        "vhost": vhost.name,
                        "durable": True,
                        "auto_delete": queue.auto_delete,
                        "arguments": dict(queue.arguments.arguments),
                    },
                )
        for exchange in list(vhost.exchanges.values()):
            for bindings in list(exchange.bindings.values()):
                for binding in list(bindings.values()):
                    row = _binding_row(vhost, exchange, binding)
                    if row is not None:
                        yield "bindings", row


def _is_durable(exchange: Exchange) -> bool:
    """True if the exchange is durable and not predeclared."""
    return exchange.options.durable and exchange.number > 0


def _exchange_row(vhost: VirtualHost, exchange: Exchange) -> Row:
    options = exchange.options
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": True,
        "auto_delete": options.auto_delete,
        "internal": options.internal,
        "arguments": dict(options.arguments),
    }


def _binding_row(vhost: VirtualHost, exchange: Exchange, binding: Binding) -> Row | None:
    """Return the binding as an object of the document, or None if it is not durable."""
    target = binding.destination
    kind = (
        "queue"
        if isinstance(target, Queue) and target.durable
        else ("exchange" if isinstance(target, Exchange) and target.options.durable else "")
    )
    if not kind or not exchange.options.durable:
        return None
    return {
        "source": exchange.name,
        "vhost": vhost.name,
        "destination": target.name,
        "destination_type": kind,
        "routing_key": binding.key,
        "arguments": dict(binding.arguments),
    }


def _text(row: Row, field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise PreconditionFailed(f"'{field}' is {value!r}, not a string")
    return value


def _flag(row: Row, field: str) -> bool:
    value = row.get(field, False)
    if not isinstance(value, bool):
        raise PreconditionFailed(f"'{field}' is {value!r}, not true or false")
    return value


def _table(row: Row, field: str) -> dict[str, object]:
    value = row.get(field, {})
    if not isinstance(value, dict):
        raise PreconditionFailed(f"'{field}' is {value!r}, not an object")
    return value
