"""Reads the bindings that a job examines, from a file, a broker or the stream `$topology`.

    --definitions, --current, --proposed    exchanges, queues and bindings: a file, or a broker
    --topology                              MQTT subscriptions: a stream `$topology`

Without --topology, the stream `$topology` beside the journal is read. The job uses the
subscriptions at the time of --as-of, or at the end of the stream. If no file or broker is named,
the exchanges, queues and bindings are read from the stream as well. `read_bindings` also returns
the names of these sources, for the output of the job.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark_trellis import definitions, topology
from pyspark_trellis.answering import credentials_of
from pyspark_trellis.bindings_by_time import by_time, splits_of
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory, JournalStream, directory_name, name_parts
from pyspark_trellis.periods import RowSplits
from pyspark_trellis.remote import Remote, RemoteBroker, stream_names
from pyspark_trellis.segments import name_of
from pyspark_trellis.topology import TopologyState
from pyspark_trellis.topology_history import TopologyHistory

#: The jobs that also answer if no bindings are known, from the journal alone.
_WITHOUT_BINDINGS: Final = ("asyncapi", "unroutable", "whatif")
#: The jobs whose answer has topics, but neither bindings nor queues.
_OF_TOPICS: Final = ("asyncapi", "unroutable")
#: The name of the directory of all streams of a broker, which has a directory for each vhost.
_STREAMS: Final = "streams"
#: The jobs that route each message by the bindings of its minute.
_BY_TIME: Final = ("whatif", "audit")
#: The value of --topology with which a job ignores the stream `$topology`.
NONE: Final = "none"
UNKNOWN: Final = "messages that only MQTT sessions receive count as unroutable or lost"


@dataclass(frozen=True)
class JobBindings:
    """The bindings that a job examines.

    `current` are the present bindings; None if only the journal shows the destinations of messages.
    `proposed` are the bindings to compare with, None for jobs other than whatif and report.
    `sources` are lines of text about the origin of these bindings.

    `then` has the bindings of `current` and bindings that do not exist any more, each with the
    periods in which it existed; `then_proposed` is `proposed`, extended in this way.
    `splits` divides the messages by these periods; None if all messages are routed by the same
    bindings.

    `recorded` are the virtual hosts whose messages the journal has; empty if the arguments do not
    show them.
    """

    current: DefinitionsFile | None
    proposed: DefinitionsFile | None
    sources: tuple[str, ...]
    then: DefinitionsFile | None = None
    then_proposed: DefinitionsFile | None = None
    splits: RowSplits | None = None
    recorded: frozenset[str] = frozenset()

    @property
    def effective(self) -> DefinitionsFile:
        """The present bindings, as in `current`; not for the job whatif, where they may be None."""
        assert self.current is not None, "read_bindings() requires the present bindings"
        return self.current

    @property
    def routing(self) -> DefinitionsFile | None:
        """The bindings with the times of their existence if these are known, else the present
        bindings; None if no bindings are known.
        """
        return self.then or self.current

    @property
    def proposed_routing(self) -> DefinitionsFile:
        """The proposed bindings, with the times in which each MQTT session existed, if known."""
        definitions = self.then_proposed or self.proposed
        assert definitions is not None, "read_bindings() requires the proposed bindings"
        return definitions


def read_bindings(arguments: argparse.Namespace) -> JobBindings:
    """Return the bindings that --definitions, --current, --proposed and --topology name.

    Raises PipelineError.
    """
    bindings = _read_bindings(arguments)
    files = [each for each in (bindings.current, bindings.proposed) if each is not None]
    vhosts = {vhost for each in files for vhost in each.hosts}
    recorded = _recorded_vhosts(arguments, vhosts)
    if not recorded or arguments.job in _OF_TOPICS:
        return replace(bindings, recorded=recorded)
    others = sorted(
        vhost
        for vhost in vhosts - recorded
        if any(each.vhost == vhost for file in files for each in file.bindings)
    )
    lines = [
        f"this journal has no messages of vhost '{vhost}': to examine the bindings and queues of "
        "that virtual host, read a journal of it"
        for vhost in others
    ]
    return replace(bindings, sources=(*bindings.sources, *lines), recorded=recorded)


def _recorded_vhosts(arguments: argparse.Namespace, vhosts: Iterable[str]) -> frozenset[str]:
    """Return the virtual hosts whose messages the journal has.

    Each journal records one virtual host. Over HTTP, the name of a journal contains the name of the
    virtual host. In a data directory, the virtual host's directory has an encoded name, which is
    compared with the encoded names of `vhosts`. Return an empty set if the virtual hosts are
    unknown.
    """
    journal = arguments.journal
    if journal is None:
        return frozenset()
    if _is_remote(journal):
        names = (arguments.stream or "").split(",")
        return frozenset(name_parts(name)[0] for name in names if name)
    directory = _vhost_directory(arguments)
    if directory.parent.name != _STREAMS:
        return frozenset()
    return frozenset(vhost for vhost in vhosts if directory_name(vhost) == directory.name)


def _read_bindings(arguments: argparse.Namespace) -> JobBindings:
    """Return the result of `read_bindings`, without the recorded virtual hosts."""
    whatif = arguments.job == "whatif"
    flag, file = (
        ("--current", arguments.current) if whatif else ("--definitions", arguments.definitions)
    )
    wanted = arguments.definitions if whatif else getattr(arguments, "proposed", None)
    until = parse_time(arguments.as_of)
    if until is not None and file is not None:
        raise PipelineError(
            f"--as-of selects past bindings, but {flag} names present bindings: leave out one of "
            "the two options"
        )
    login = credentials_of(arguments)
    current = definitions.read(file, login) if file is not None else None
    proposed = definitions.read(wanted, login) if wanted is not None else None
    streams, states, reason = _topologies(arguments, until)
    if not states:
        if until is not None:
            raise PipelineError(f"--as-of requires the stream $topology: {reason}")
        if current is None and arguments.job not in _WITHOUT_BINDINGS:
            raise PipelineError(
                f"the bindings are unknown ({reason}): set --definitions FILE or --topology PLACE"
            )
        bound = current.name if current is not None else "the routing recorded in the journal"
        return JobBindings(
            current,
            proposed,
            (f"bindings: {bound}", f"MQTT sessions: unknown ({reason}); {UNKNOWN}"),
        )
    own = current is None
    sources = [
        f"{topology.NAME} of vhost '{state.vhost}' as of {state.at:%Y-%m-%d %H:%M:%S} UTC"
        for state in states
    ]
    current = (
        topology.as_definitions(states, sources[0])
        if current is None
        else topology.with_subscriptions(current, states)
    )
    if proposed is not None:
        proposed = topology.with_subscriptions(proposed, states)
    timed = until is None and arguments.job in _BY_TIME
    bound = "; ".join(sources) if own else current.name
    then = "; each message is routed by the bindings of the minute of its arrival" if timed else ""
    lines = [f"bindings: {bound}{then if own else ''}"]
    for state, source in zip(states, sources, strict=True):
        subscriptions = sum(1 for _ in state.subscriptions())
        lines.append(
            f"MQTT sessions and groups: {state.sessions():,}, "
            f"their subscriptions: {subscriptions:,}, from {source}"
        )
    others = sorted(
        {vhost for each in (current, proposed) if each is not None for vhost in each.hosts}
        - {state.vhost for state in states}
    )
    lines += [f"MQTT sessions of vhost '{vhost}': unknown; {UNKNOWN}" for vhost in others]
    histories = [TopologyHistory.of(stream) for stream in streams] if timed else []
    splits = splits_of(histories)
    if not splits.periods.begins:
        users = _users_not_received(current) if arguments.job in _BY_TIME else frozenset()
        apart = RowSplits(users=users) if users else None
        return JobBindings(current, proposed, tuple(lines), splits=apart)
    whatif = arguments.job == "whatif"
    return JobBindings(
        current,
        proposed,
        tuple(lines),
        by_time(current, histories, splits.periods, own, not whatif),
        None if proposed is None else by_time(proposed, histories, splits.periods, False, False),
        splits,
    )


def _users_not_received(definitions: DefinitionsFile) -> frozenset[str]:
    """Return the users whose messages some session does not receive (No Local)."""
    scopes = [each.scope for each in definitions.bindings if each.scope is not None]
    return frozenset(scope.not_of for scope in scopes if scope.not_of is not None)


def parse_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time; return None for None.

    A time without a zone is in UTC. Raises PipelineError.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise PipelineError(
            f"--as-of is '{text}', but must be a time like 2026-03-01T12:00:00Z"
        ) from None


def _topologies(
    arguments: argparse.Namespace, until: datetime | None
) -> tuple[list[JournalStream], list[TopologyState], str]:
    """Return the `$topology` streams, their states at `until`, and the reason if there are none.

    If streams are found, the reason is "". The stream of the journal's virtual host comes first. If
    `until` is None, the states are those at the ends of the streams. Raises PipelineError if the
    arguments name a stream that cannot be read.
    """
    try:
        streams, reason = _named_streams(arguments)
        states = [topology.replay(stream, until) for stream in streams[:1]]
    except PipelineError as error:
        if arguments.topology is not None:
            raise
        return [], [], str(error)
    read = streams[:1]
    for stream in streams[1:]:
        # Another virtual host may have no snapshot of that time; its sessions are unknown then.
        with suppress(PipelineError):
            states.append(topology.replay(stream, until))
            read.append(stream)
    return read, states, reason


def _named_streams(arguments: argparse.Namespace) -> tuple[list[JournalStream], str]:
    """Return the `$topology` streams that the arguments lead to, and the reason if there are none.

    Every virtual host with a journal has such a stream. The stream of the journal's own virtual
    host comes first. If streams are found, the reason is "". Raises PipelineError.
    """
    named, journal = arguments.topology, arguments.journal
    if named == NONE:
        return [], "--topology is none"
    if named is not None:
        if not _is_remote(named):
            return [Directory(named.removeprefix("file://"))], ""
        return _remote_streams(named, arguments), ""
    if journal is None:
        return [], "--topology is not set"
    if _is_remote(journal):
        return _remote_streams(journal, arguments), ""
    vhost = _vhost_directory(arguments)
    beside = vhost / topology.DIRECTORY
    if not beside.is_dir():
        return [], f"there is no directory {topology.DIRECTORY} beside the journal"
    # Elsewhere, for example in a copy of one stream, the directories beside it are not vhosts.
    others = sorted(
        path
        for path in (vhost.parent if vhost.parent.name == _STREAMS else beside).glob(
            f"*/{topology.DIRECTORY}"
        )
        if path != beside and any(name_of(file.name) for file in path.iterdir())
    )
    return [Directory(str(path)) for path in [beside, *others]], ""


def _vhost_directory(arguments: argparse.Namespace) -> Path:
    """Return the directory of the journal's virtual host, from --journal and --stream.

    With --stream, --journal names the directory of all streams of a broker. Without --stream, it
    names the directory of the journal.
    """
    directory = Path(arguments.journal.removeprefix("file://")).absolute()
    if arguments.stream is None:
        return directory.parent
    return directory / directory_name(name_parts(arguments.stream.partition(",")[0])[0])


def _is_remote(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def _remote_streams(url: str, arguments: argparse.Namespace) -> list[JournalStream]:
    """Return the `$topology` streams of the broker with this URL that the user may read.

    The stream of the virtual host in --stream (VHOST/QUEUE) comes first; without a VHOST, the
    stream of the virtual host `/`.
    """
    login = credentials_of(arguments)
    vhost = (arguments.stream or "").rpartition("/")[0]
    own = Remote.of(
        url, {"journal": f"{vhost}/{topology.NAME}" if vhost else topology.NAME} | login
    )
    own.bounds()  # Raises the error that names a missing stream.
    return [
        own,
        *(
            Remote.of(url, {"journal": name} | login)
            for name in sorted(stream_names(RemoteBroker.of(url, login)))
            if name_parts(name)[1] == topology.NAME and name != own.journal
        ),
    ]
