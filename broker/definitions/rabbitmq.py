"""Import of definitions in RabbitMQ's JSON format.

    {users, vhosts, permissions, topic_permissions, parameters, global_parameters, policies,
     exchanges, queues, bindings}
    {operator_policies}   another place for the parameters of the component `operator_policy`
    {topic_rules}         an extension of Trellis: ordered topic rules
    {roles}               an extension of Trellis: permissions and rules that users share

Each section is a list of objects.

The import is idempotent. An existing user, permission, topic rule, parameter or policy is replaced.
An existing exchange or queue with other properties is not changed, and is reported. An invalid
object is not imported, and is reported. All other objects are imported. The parts of an object that
Trellis does not have, or treats differently, are reported (broker/compatibility.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.broker import Broker
from broker.compatibility import DOCUMENT_FIELDS
from broker.definitions.objects import ObjectImport
from broker.errors import BrokerError, NotFound, PreconditionFailed
from broker.names import shown
from broker.nesting import NESTING_MAX, is_nested_too_deep
from broker.store.contract import Ticket

#: The kind of a finding about an object that is not imported.
REFUSED: Final = "refused"
#: The sections that are imported, in the order of their dependencies.
SECTIONS: Final = (
    "vhosts",
    "roles",
    "users",
    "permissions",
    "topic_permissions",
    "topic_rules",
    "parameters",
    "global_parameters",
    "operator_policies",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)


class Difference:
    """One difference between an object of a document and the imported object.

    `kind` is DIFFERENT if a part of the object has another effect than in RabbitMQ, MISSING if a
    part has no effect, or REFUSED if the object is not imported at all. `missing` is the error
    about a queue or an exchange that the object needs and that does not exist; None if there is no
    such error.
    """

    __slots__ = ("index", "kind", "missing", "name", "section", "text")

    def __init__(
        self,
        section: str,
        index: int,
        name: str,
        kind: str,
        text: str,
        missing: NotFound | None = None,
    ) -> None:
        self.section = section
        self.index = index
        self.name = name
        self.kind = kind
        self.text = text
        self.missing = missing

    def __str__(self) -> str:
        return f"{label_of(self.section, self.index, self.name)}: {self.text}"


class ImportReport:
    """The result of an import: the number of imported objects by section, refusals and notes.

    Each refusal and each note is a text that names the object, and the reason. A note is about a
    part of an object that was imported.
    """

    def __init__(self) -> None:
        self.imported: dict[str, int] = {}
        self.refused: list[str] = []
        self.notes: list[str] = []


def import_(
    broker: Broker,
    document: object,
    check_hash: Callable[[str, str], str],
    ticket: Ticket | None = None,
) -> ImportReport:
    """Import the definitions of a decoded JSON document, and return a report.

    `check_hash` gets a password hash and the name of its algorithm as RabbitMQ writes them, and
    returns the hash as the broker stores it; `check_hash` raises ValueError for an invalid hash.
    Raises PreconditionFailed if the document is not a JSON object.
    """
    rows = rows_of(document)
    import_run = Import(broker, check_hash, ticket)
    import_run.report.notes += unknown_sections(document)
    for section, row in rows:
        import_run.take(section, row)
    import_run.report.refused += faults_of(document)
    return import_run.report


def rows_of(document: object) -> Iterator[tuple[str, object]]:
    """Return an iterator over the objects of a document, with their sections, in the order of their
    dependencies.

    Raises PreconditionFailed if the document is not a JSON object.
    """
    if not isinstance(document, dict):
        raise PreconditionFailed(
            "definitions must be a JSON object with lists named " + ", ".join(SECTIONS)
        )
    return (
        (section, row)
        for section in SECTIONS
        if isinstance(document.get(section), list)
        for row in document[section]
    )


def faults_of(document: object) -> list[str]:
    """Return an error text for each section of a document that is not a list."""
    known = document if isinstance(document, dict) else {}
    return [
        f"{section}: the section must be a list"
        for section in SECTIONS
        if section in known and not isinstance(known[section], list)
    ]


def unknown_sections(document: object) -> list[str]:
    """Return a text for each section of a document that Trellis does not know."""
    known = document if isinstance(document, dict) else {}
    return [
        f"{shown(str(name))}: the section is unknown, and was left out"
        for name, value in known.items()
        if name not in SECTIONS and name not in DOCUMENT_FIELDS and value
    ]


class Import:
    """An import into one broker, object by object, so that other work can run between two objects.

    The sections must come in the order of SECTIONS.
    """

    def __init__(
        self,
        broker: Broker,
        check_hash: Callable[[str, str], str],
        ticket: Ticket | None = None,
    ) -> None:
        self._objects = ObjectImport(broker, check_hash, ticket)
        #: The report about the objects imported so far.
        self.report = ImportReport()
        #: The number of objects of each section so far.
        self._seen: dict[str, int] = {}

    def take(self, section: str, row: object) -> list[Difference]:
        """Import one object of a section.

        Return the differences between the object in the document and the object in the broker. The
        import or the refusal is counted in the report.
        """
        at = self._seen.get(section, 0)
        self._seen[section] = at + 1
        report, objects = self.report, self._objects
        name = name_of(section, row)
        findings: list[Difference] = []
        objects.verdicts = []
        try:
            if not isinstance(row, dict):
                raise PreconditionFailed("the entry must be a JSON object")
            if is_nested_too_deep(row):
                raise PreconditionFailed(
                    f"the object is nested more than {NESTING_MAX} levels deep, which is the limit"
                )
            objects.add(section, row)
        except (BrokerError, ValueError) as error:
            missing = error if isinstance(error, NotFound) else None
            findings.append(Difference(section, at, name, REFUSED, str(error), missing))
            report.refused.append(str(findings[0]))
        else:
            report.imported[section] = report.imported.get(section, 0) + 1
            for verdict in objects.verdicts:
                finding = Difference(section, at, name, verdict.kind, verdict.text)
                findings.append(finding)
                report.notes.append(str(finding))
        return findings


def label_of(section: str, index: int, name: str) -> str:
    """Return the text that stands for an object in reports, such as `queues[0] 'orders'`.

    `index` is the position of the object in its section of the document, from 0. The text of an
    object without a name ("") ends after the index.
    """
    return f"{section}[{index}] {name!r}" if name else f"{section}[{index}]"


def name_of(section: str, row: object) -> str:
    """Return the name of an object of a section for reports; "" if the object has none.

    The name of a binding is `SOURCE -> DESTINATION`. An object without the field `name` is named
    by its field `user`.
    """
    if not isinstance(row, dict):
        return ""
    if section == "bindings":
        if "source" not in row and "destination" not in row:
            return ""
        key = row.get("routing_key")
        suffix = f" (key {key})" if key else ""
        return f"{row.get('source', '')} -> {row.get('destination', '')}{suffix}"
    return str(row.get("name", row.get("user", "")))
