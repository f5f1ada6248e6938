"""What a question is about: which bindings, by a file, a broker or the stream `$topology`; and who
says so, in lines for people.

--definitions, --current, --proposed   exchanges, queues and bindings      a file, or a broker over
HTTP
--topology, or the one beside --journal   subscriptions of MQTT sessions   as of its end, or of
--as-of the same, where no file says them         all bindings
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark_trellis import definitions, topology
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory, JournalStream
from pyspark_trellis.remote import Remote

#: A value of --topology: ask without it.
NONE: Final = "none"
UNKNOWN: Final = "what only they get counts as unroutable, or lost"


@dataclass(frozen=True)
class Asked:
    """`current`: what leads where; None where only the journal says it. `proposed`: what somebody
    would like instead. `said_by`: where that comes from."""

    current: DefinitionsFile | None
    proposed: DefinitionsFile | None
    said_by: tuple[str, ...]

    @property
    def there(self) -> DefinitionsFile:
        """What leads where, for all questions but whatif."""
        assert self.current is not None, "asked() has seen to it"
        return self.current


def asked(arguments: argparse.Namespace) -> Asked:
    """By a command's arguments. Raises PipelineError."""
    whatif = arguments.job == "whatif"
    flag, file = (
        ("--current", arguments.current) if whatif else ("--definitions", arguments.definitions)
    )
    wanted = arguments.definitions if whatif else getattr(arguments, "proposed", None)
    until = moment(arguments.as_of)
    if until is not None and file is not None:
        raise PipelineError(
            f"--as-of asks about the bindings of that time, and {flag} names others: leave one of them out"
        )
    current = definitions.read(file) if file is not None else None
    proposed = definitions.read(wanted) if wanted is not None else None
    then, reason = _then(arguments, until)
    if then is None:
        if until is not None:
            raise PipelineError(f"--as-of needs the stream $topology: {reason}")
        if current is None and not whatif:
            raise PipelineError(
                f"say what is bound: --definitions FILE, or --topology PLACE ({reason})"
            )
        bound = current.name if current is not None else "what the journal says was routed"
        return Asked(
            current,
            proposed,
            (f"bindings: {bound}", f"MQTT sessions: not known ({reason}); {UNKNOWN}"),
        )
    place = f"{topology.NAME} of vhost '{then.vhost}' as of {then.at:%Y-%m-%d %H:%M:%S} UTC"
    bound = place if current is None else current.name
    current = (
        topology.whole([then], place) if current is None else topology.listening(current, [then])
    )
    subscriptions = sum(1 for _ in then.subscriptions())
    heard = f"MQTT sessions, groups among them: {then.sessions():,}, with subscriptions: {subscriptions:,}, by {place}"
    if proposed is not None:
        proposed = topology.listening(proposed, [then])
    others = sorted(
        {vhost for each in (current, proposed) if each is not None for vhost in each.hosts}
        - {then.vhost}
    )
    lines = [f"MQTT sessions of vhost '{vhost}': not known; {UNKNOWN}" for vhost in others]
    return Asked(current, proposed, (f"bindings: {bound}", heard, *lines))


def moment(text: str | None) -> datetime | None:
    """ISO 8601; UTC where no zone is said. Raises PipelineError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(f"--as-of {text} should be a time like 2026-03-01T12:00:00Z") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _then(
    arguments: argparse.Namespace, until: datetime | None
) -> tuple[topology.Then | None, str]:
    """What `$topology` says, or why nothing. Raises PipelineError of one that was named."""
    named, journal = arguments.topology, arguments.journal
    if named == NONE:
        return None, "--topology none"
    if named is not None:
        return topology.replay(_stream(named, arguments.stream), until), ""
    if journal is None:
        return None, "no --topology"
    if not _remote(journal):
        beside = Path(journal.removeprefix("file://")).absolute().parent / topology.DIRECTORY
        if not beside.is_dir():
            return None, f"no {topology.DIRECTORY} beside the journal"
        journal = str(beside)
    try:
        return topology.replay(_stream(journal, arguments.stream), until), ""
    except PipelineError as error:
        return None, str(error)


def _remote(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _stream(place: str, journal: str | None) -> JournalStream:
    """The topology in a directory; over HTTP that of the journal's virtual host."""
    if not _remote(place):
        return Directory(place.removeprefix("file://"))
    vhost = (journal or "").rpartition("/")[0]
    return Remote.of(place, {"stream": f"{vhost}/{topology.NAME}" if vhost else topology.NAME})
