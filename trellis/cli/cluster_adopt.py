"""`trellis cluster adopt`: begin a replicated log with the data directory of this node."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trellis.cli.actions import add_result, print_json, print_result
from trellis.cli.cluster_log import cluster_settings, failure
from trellis.cli.confirming import add_yes, confirm
from trellis.cli.parsing import CommandError, Commands, Parser, add_settings, load_settings
from trellis.cli.store import data_directory
from trellis.settings import NodeSettings, Settings

if TYPE_CHECKING:
    from broker.replication.adoption import DirectorySurvey
    from broker.replication.engine import ReplicatedLog
    from trellis.cluster.adopting import Adoption, LogSurvey

TEXT: Final = "begin a new topic with the data directory of this node"

#: The keys of the settings that the command uses.
_USED: Final = (
    *(f"cluster.{name}" for name in ("name", "servers", "topic")),
    *(f"cluster.{name}" for name in ("silence", "lease", "beat", "unsafe")),
    *("node.name", "data.dir", "store.segment", "log.audit"),
)


def add(tools: Commands) -> None:
    """Add the parser of the command `trellis cluster adopt`."""
    tool: Parser = tools.add_parser(
        "adopt",
        prog="trellis cluster adopt",
        usage="trellis cluster adopt [--dry-run] [--over-records] [--behind] [--yes] [--json] "
        "[--config FILE]... [FLAG VALUE]...",
        help=TEXT,
        description=f"{TEXT[:1].upper()}{TEXT[1:]}, after Kafka has lost the old topic, or for the "
        "data directory of a broker that ran without a cluster. All nodes must be stopped. Compare "
        "the positions of all nodes first: run the command with --dry-run on each of them, and "
        "adopt the directory with the highest position.",
    )
    tool.set_defaults(run=adopt, parser=tool)
    tool.add_argument(
        "--dry-run",
        action="store_true",
        help="print the position up to which the data directory has all changes of the log; "
        "change nothing",
    )
    tool.add_argument(
        "--over-records", action="store_true", help="discard the records that the topic has"
    )
    tool.add_argument(
        "--behind",
        action="store_true",
        help="adopt this directory although another node has reported a higher position",
    )
    add_yes(tool)
    add_result(tool)
    add_settings(tool, uses=_USED)


def adopt(arguments: argparse.Namespace) -> int:
    """Begin a replicated log with the data directory of this node."""
    from broker.replication.contract import LogUnreachable, OutcomeUnknown
    from broker.replication.errors import ReplicationError
    from broker.store.disk import Lock, StoreError

    settings = load_settings(arguments).settings
    directory = data_directory(arguments)
    try:
        lock = Lock(str(directory))
        try:
            survey = _survey(directory)
            if arguments.dry_run:
                return _show(arguments, settings, survey)
            log = _open(arguments, settings)
            try:
                return _adopt(arguments, settings, survey, log)
            finally:
                log.close()
        finally:
            lock.release()
    except OutcomeUnknown as error:
        raise CommandError(
            f"{error}; the data directory is unchanged, so repeat this command"
        ) from None
    except (LogUnreachable, ReplicationError, StoreError) as error:
        raise failure(error) from None


def _survey(directory: Path) -> DirectorySurvey:
    """Return the state, the last position and the number of definitions of a data directory.

    Raises CommandError if the directory has no store, ReplicationError if the store is damaged, and
    StoreError if the store cannot be read.
    """
    from broker.replication.adoption import survey_directory
    from broker.store.disk import RealDisk
    from broker.store.opening import CATALOG

    if not (directory / CATALOG).exists():
        raise CommandError(
            f"there is no store in {directory}, so there is nothing to adopt: start the node with "
            "`trellis serve`"
        )
    return survey_directory(RealDisk(), str(directory))


def _open(arguments: argparse.Namespace, settings: Settings) -> ReplicatedLog:
    """Connect to the log that the settings name. Raises CommandError."""
    cluster = cluster_settings(arguments)
    if settings.node.name == NodeSettings().name:
        raise CommandError(
            f"node.name: '{settings.node.name}' is the default; give each node of the cluster a "
            "name that no other node has",
            2,
        )
    from broker.replication.contract import LogUnreachable
    from broker.replication.errors import ReplicationError
    from trellis.cluster.kafka_log import KafkaLog

    try:
        log = KafkaLog(cluster, settings.node.name)
        try:
            log.connect()
        except BaseException:
            log.close()
            raise
    except (LogUnreachable, ReplicationError) as error:
        raise failure(error) from None
    return log


def _adopt(
    arguments: argparse.Namespace, settings: Settings, survey: DirectorySurvey, log: ReplicatedLog
) -> int:
    from trellis.cluster.adopting import Adoption
    from trellis.server.offline_audit import OfflineAudit

    cluster = settings.cluster
    adoption = Adoption(log, cluster.name, settings.node.name, cluster.timing)
    log_survey = adoption.examine(survey, arguments.over_records, arguments.behind)
    confirm(arguments, adoption.consequences(survey, log_survey))
    with OfflineAudit(settings, "trellis cluster adopt") as audit:
        epoch = _carry_out(settings, survey, adoption, log_survey)
        facts = {"directory": survey.path, "topic": cluster.log_topic, "epoch": epoch}
        audit.add("adopt", "cluster", cluster.name, facts)
    text = (
        f"the log of cluster '{cluster.name}' now begins with the data in {survey.path} (epoch "
        f"{epoch}): start this node with `trellis serve`, then give each other node a copy of its "
        "directory with `trellis cluster seed`"
    )
    fields = {"cluster": cluster.name, "directory": survey.path, "epoch": epoch}
    print_result(arguments, text, **fields, changed=True)
    return 0


def _show(arguments: argparse.Namespace, settings: Settings, survey: DirectorySurvey) -> int:
    """Print the last position of this directory, and the positions that the nodes have reported.

    The reports are in Kafka. If the reports cannot be read, for example because the topic is lost,
    print the position of the directory alone.
    """
    from trellis.cluster.adopting import Adoption

    row = {
        "directory": survey.path,
        "position": survey.position,
        "batch": survey.state.number,
        "definitions": survey.definitions,
        "cluster": survey.state.name,
    }
    if not arguments.json:
        owner = (
            f"the broker '{survey.state.name}'"
            if survey.state.name
            else "a broker without a cluster"
        )
        print(
            f"{survey.path}: data directory of {owner}, position {survey.position}, "
            f"batch {survey.state.number}, {survey.definitions} definitions"
        )
    try:
        log = _open(arguments, settings)
    except CommandError as error:
        problem = f"the positions of the other nodes cannot be read from Kafka: {error}"
        print_result(arguments, problem, **row, reports=[], problem=problem)
        return 0
    try:
        adoption = Adoption(log, settings.cluster.name, settings.node.name, settings.cluster.timing)
        if arguments.json:
            print_json({**row, "reports": list(adoption.report_rows())})
        else:
            for line in adoption.positions():
                print(line)
    finally:
        log.close()
    return 0


def _carry_out(
    settings: Settings, survey: DirectorySurvey, adoption: Adoption, log_survey: LogSurvey
) -> int:
    """Begin the log with the data directory.

    Return the epoch of the new log: the number of its first claim.
    """
    from broker.replication.adoption import AdoptedDirectory
    from broker.store.disk import RealDisk
    from trellis.server.recovery import codecs

    directory = AdoptedDirectory(
        RealDisk(),
        survey.path,
        codecs(),
        secrets.randbits(32) or 1,
        lambda line: print(line, file=sys.stderr),
        settings.store.segment,
    )
    try:
        return adoption.carry_out(survey, directory, log_survey)
    finally:
        directory.close()
