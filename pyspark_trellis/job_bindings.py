"""Reads the bindings that a job examines, from a file, a broker or the stream `$topology`.

    --definitions, --current, --proposed    exchanges, queues and bindings: a file, or a broker
    --topology                              MQTT subscriptions: a stream `$topology`

Without --topology, the stream `$topology` beside the journal is read. The subscriptions are those
at the time of --as-of, or at the end of the stream. If no file or broker is named, the exchanges,
queues and bindings are read from the stream as well. `read_bindings` also returns the names of
these sources, for the output of the job.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark_trellis import definitions, topology
from pyspark_trellis.answering import credentials_of
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory, JournalStream
from pyspark_trellis.remote import Remote

#: The jobs that also answer if no bindings are known, from the journal alone.
_WITHOUT_BINDINGS: Final = ("whatif", "unroutable")
#: The value of --topology with which a job ignores the stream `$topology`.
NONE: Final = "none"
UNKNOWN: Final = "messages that only MQTT sessions receive count as unroutable or lost"


@dataclass(frozen=True)
class JobBindings:
    """The bindings that a job examines.

    `current` are the present bindings; None if only the journal shows the destinations of messages.
    `proposed` are the bindings to compare with, None for jobs other than whatif and report.
    `sources` are lines of text about the origin of these bindings.
    """

    current: DefinitionsFile | None
    proposed: DefinitionsFile | None
    sources: tuple[str, ...]

    @property
    def effective(self) -> DefinitionsFile:
        """The present bindings. Every job except whatif requires them."""
        assert self.current is not None, "read_bindings() requires them"
        return self.current


def read_bindings(arguments: argparse.Namespace) -> JobBindings:
    """Return the bindings that --definitions, --current, --proposed and --topology name.

    Raises PipelineError.
    """
    whatif = arguments.job == "whatif"
    flag, file = (
        ("--current", arguments.current) if whatif else ("--definitions", arguments.definitions)
    )
    wanted = arguments.definitions if whatif else getattr(arguments, "proposed", None)
    until = moment(arguments.as_of)
    if until is not None and file is not None:
        raise PipelineError(
            f"--as-of asks for past bindings, but {flag} names present ones: leave out one of the "
            "two options"
        )
    login = credentials_of(arguments)
    current = definitions.read(file, login) if file is not None else None
    proposed = definitions.read(wanted, login) if wanted is not None else None
    state, reason = _topology_state(arguments, until)
    if state is None:
        if until is not None:
            raise PipelineError(f"--as-of needs the stream $topology: {reason}")
        if current is None and arguments.job not in _WITHOUT_BINDINGS:
            raise PipelineError(
                f"no bindings: name --definitions FILE or --topology PLACE ({reason})"
            )
        bound = current.name if current is not None else "the routing recorded in the journal"
        return JobBindings(
            current,
            proposed,
            (f"bindings: {bound}", f"MQTT sessions: unknown ({reason}); {UNKNOWN}"),
        )
    place = f"{topology.NAME} of vhost '{state.vhost}' as of {state.at:%Y-%m-%d %H:%M:%S} UTC"
    bound = place if current is None else current.name
    current = (
        topology.as_definitions([state], place)
        if current is None
        else topology.with_subscriptions(current, [state])
    )
    subscriptions = sum(1 for _ in state.subscriptions())
    sessions_line = (
        f"MQTT sessions and groups: {state.sessions():,}, "
        f"their subscriptions: {subscriptions:,}, from {place}"
    )
    if proposed is not None:
        proposed = topology.with_subscriptions(proposed, [state])
    others = sorted(
        {vhost for each in (current, proposed) if each is not None for vhost in each.hosts}
        - {state.vhost}
    )
    lines = [f"MQTT sessions of vhost '{vhost}': unknown; {UNKNOWN}" for vhost in others]
    return JobBindings(current, proposed, (f"bindings: {bound}", sessions_line, *lines))


def moment(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time; a time without a zone is in UTC. Raises PipelineError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"--as-of {text}: this is not a time like 2026-03-01T12:00:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _topology_state(
    arguments: argparse.Namespace, until: datetime | None
) -> tuple[topology.TopologyState | None, str]:
    """Return the state of `$topology`; or None and the reason why there is no state.

    Raises PipelineError if the arguments name a topology that cannot be read.
    """
    named, journal = arguments.topology, arguments.journal
    if named == NONE:
        return None, "--topology none"
    if named is not None:
        return topology.replay(_stream(named, arguments), until), ""
    if journal is None:
        return None, "no --topology"
    if not _remote(journal):
        beside = Path(journal.removeprefix("file://")).absolute().parent / topology.DIRECTORY
        if not beside.is_dir():
            return None, f"no {topology.DIRECTORY} beside the journal"
        journal = str(beside)
    try:
        return topology.replay(_stream(journal, arguments), until), ""
    except PipelineError as error:
        return None, str(error)


def _remote(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _stream(place: str, arguments: argparse.Namespace) -> JournalStream:
    """Return the topology stream at `place`: in a directory, or of the broker with this URL.

    A broker has one topology stream for each virtual host. --stream (VHOST/QUEUE) names the virtual
    host; the default is /.
    """
    if not _remote(place):
        return Directory(place.removeprefix("file://"))
    vhost = (arguments.stream or "").rpartition("/")[0]
    name = f"{vhost}/{topology.NAME}" if vhost else topology.NAME
    return Remote.of(place, {"stream": name} | credentials_of(arguments))
