"""`trellis cluster adopt`: begin a replicated log with the data directory of a stopped node.

The command refuses to begin a log while a node of the cluster runs, or while records are appended
to the log. The command also refuses a log that has records (unless --over-records is given), and a
directory that has less of the old log than another node has reported (unless --behind is given).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.replication.adoption import (
    AdoptedDirectory,
    DirectorySurvey,
    adoption_claim,
    is_same_adoption,
    state_after,
)
from broker.replication.contract import Timing
from broker.replication.description import NodeDescription
from broker.replication.engine import ReplicatedLog
from broker.replication.errors import ReplicationError
from broker.replication.records import (
    BatchChunk,
    Claim,
    ForeignRecord,
    Mark,
    decode,
)
from broker.replication.report import NodeReport
from trellis.cluster.clock import wall_ms
from trellis.cluster.status import LOST_SECONDS

#: Number of records at the end of a log that are read.
SAMPLE: Final = 500
#: The log must get no record for `cluster.silence` seconds, and for this number of seconds more.
WATCH_MARGIN: Final = 0.5
_NEW_TOPIC: Final = (
    "create a new topic (delete this one, or set cluster.topic to another name, and run `trellis "
    "cluster check --create`)"
)


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The content of the replicated log, before an adoption begins the log anew.

    `low` is the offset of the first record, `tip` the offset that the next record will have.
    """

    low: int
    tip: int
    #: The highest epoch and the highest number of a batch among the last records.
    epoch: int = 0
    batch: int = 0
    #: The claim of an earlier adoption that was interrupted, if the log has no other record.
    interrupted: Claim | None = None

    @property
    def records(self) -> int:
        """Number of records that the replicated log holds."""
        return self.tip - self.low


class Adoption:
    """The adoption of a data directory: a replicated log begins with the directory's content.

    `sleep` waits for a number of seconds, and `wall` returns the wall clock in ms.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        name: str,
        node: str,
        timing: Timing,
        sleep: Callable[[float], None] = time.sleep,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        """Prepare to begin the replicated log `log` anew with the state of a data directory.

        `name` is the name of the broker, the same on all nodes; `node` is the name of this node.
        """
        self._log = log
        self._name = name
        self._node = node
        self._timing = timing
        self._sleep = sleep
        self._wall = wall

    def examine(self, survey: DirectorySurvey, over_records: bool, behind: bool) -> LogSurvey:
        """Check that the adoption is permitted, and return the content of the log. Changes nothing.

        `survey` describes the data directory. `over_records` permits a log that has records.
        `behind` permits a directory whose position in the old log is behind the position that
        another node has reported. Raises ReplicationError if the adoption is refused, and
        LogUnreachable if the log does not answer.
        """
        self._refuse_foreign(survey)
        self._refuse_running()
        log_survey = self._survey_log(survey)
        if log_survey.records and log_survey.interrupted is None and not over_records:
            raise ReplicationError(
                f"the log has {log_survey.records} records (offsets {log_survey.low} to "
                f"{log_survey.tip - 1}): if they belong to this cluster, start the node with "
                "`trellis serve`; otherwise "
                f"{_NEW_TOPIC}, or discard the records with --over-records"
            )
        ahead = self._ahead(survey)
        if ahead and not behind:
            name, report = ahead
            raise ReplicationError(
                f"node '{name}' has reported position {report.position}, and the data directory "
                f"'{survey.path}' has only position {survey.position}: adopt the directory of node "
                f"'{name}', or give up its later changes with --behind"
            )
        return log_survey

    def consequences(self, survey: DirectorySurvey, log: LogSurvey) -> Iterator[str]:
        """Yield lines that tell the operator the effects of the adoption, before it begins."""
        origin = f"of node '{self._node}'" if survey.state.name else "of a broker without a cluster"
        yield (
            f"the replicated log of '{self._name}' begins with the data directory {survey.path} "
            f"{origin}: {survey.definitions} definitions, position {survey.position}"
        )
        yield from self.positions()
        if log.records and log.interrupted is None:
            lost = max(0, log.batch - survey.state.number)
            yield (
                f"{log.records} records of the log are discarded"
                + (f"; up to {lost} batches in them are not in this directory" if lost else "")
            )
        yield (
            "messages and settlements that are not in this directory are lost; each other node "
            "stops until it gets a copy of this node's directory (`trellis cluster seed`)"
        )

    def positions(self) -> Iterator[str]:
        """Yield a line for each node that has reported: its position and the age of its report."""
        for row in self.report_rows():
            yield (
                f"node '{row['node']}' has reported position {row['position']} (batch "
                f"{row['batch']}), {row['seconds_ago']:.0f} s ago"
            )

    def report_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the report of each node: its position, its batch and the age of the report."""
        for name, report in sorted(self._log.reports().items()):
            yield {
                "node": name,
                "position": report.position,
                "batch": report.batch,
                "seconds_ago": (self._wall() - report.wall) / 1000,
            }

    def carry_out(
        self, survey: DirectorySurvey, directory: AdoptedDirectory, log_survey: LogSurvey
    ) -> int:
        """Begin the log with the content of `directory`, and return the epoch of the new claim.

        There are two writes: a claim is appended to the log, then the log's state after the claim
        is stored in `directory`. If this program ends between the two, the next adoption of the
        directory finds the claim, and only stores the state. `log_survey` is the result of
        `examine`. Raises ReplicationError, OutcomeUnknown, StoreError.
        """
        claim, offset = log_survey.interrupted, log_survey.tip - 1
        if claim is None:
            claim = adoption_claim(
                self._name,
                survey.state,
                directory,
                log_survey.epoch,
                log_survey.tip,
                secrets.randbits(63) | 1,
                self._wall(),
                NodeDescription(self._node, log=self._log.identity).encode(),
            )
            offset = self._log.append(claim.encode())
            if offset != log_survey.tip:
                raise ReplicationError(
                    f"another program has appended records {log_survey.tip} to {offset - 1} to the "
                    "log at the same time: the data directory is unchanged; stop all nodes, "
                    f"{_NEW_TOPIC}, and repeat this command"
                )
        directory.store(state_after(claim, offset))
        return claim.epoch

    # -- refusals

    def _refuse_foreign(self, survey: DirectorySurvey) -> None:
        if survey.state.name not in ("", self._name):
            raise ReplicationError(
                f"the data directory '{survey.path}' belongs to the broker '{survey.state.name}', "
                f"and this node is a node of '{self._name}': correct cluster.name or data.dir"
            )
        if not survey.position:
            raise ReplicationError(
                f"the data directory '{survey.path}' is empty, so there is nothing to adopt: start "
                "the node with `trellis serve`"
            )

    def _refuse_running(self) -> None:
        """Raise ReplicationError if a node may run: it has reported in the last LOST_SECONDS."""
        for name, report in sorted(self._log.reports().items()):
            age = (self._wall() - report.wall) / 1000
            if not report.forgotten and abs(age) <= LOST_SECONDS:
                raise ReplicationError(
                    f"node '{name}' is {report.state or 'running'} and reported {age:.0f} s ago: "
                    f"stop all nodes, and repeat this command after {LOST_SECONDS:g} s"
                )

    def _survey_log(self, survey: DirectorySurvey) -> LogSurvey:
        """Return the content of the log, after a wait longer than `Timing.silence`.

        Raises ReplicationError if a record is appended meanwhile, or if the log has records of
        another broker or another program.
        """
        low, tip = self._log.bounds()
        self._sleep(self._timing.silence + WATCH_MARGIN)
        _, later = self._log.bounds()
        if later != tip:
            raise ReplicationError(
                f"{later - tip} records were appended to the log within "
                f"{self._timing.silence:g} s, so a node owns it: stop all nodes, and repeat this "
                "command"
            )
        epoch = batch = 0
        claims: list[Claim] = []
        offset = max(low, tip - SAMPLE)
        while offset < tip:
            span = self._log.read(offset)
            for at, data in span.records:
                try:
                    record = decode(data)
                except ForeignRecord as error:
                    raise ReplicationError(
                        f"the record at offset {at} is not a record of this broker ({error}): set "
                        "cluster.topic to another topic"
                    ) from error
                if isinstance(record, Claim | Mark) and record.state.name != self._name:
                    raise ReplicationError(
                        f"the log belongs to the broker '{record.state.name}', and this node is a "
                        f"node of '{self._name}': set cluster.topic to another topic"
                    )
                epoch = max(epoch, record.epoch)
                batch = max(batch, record.number) if isinstance(record, BatchChunk) else batch
                claims += [record] if isinstance(record, Claim) else []
            offset += len(span.records)
        interrupted = None
        if tip - low == len(claims) == 1 and is_same_adoption(claims[0], survey, self._name):
            interrupted = claims[0]
        return LogSurvey(low, tip, epoch, batch, interrupted)

    def _ahead(self, survey: DirectorySurvey) -> tuple[str, NodeReport] | None:
        """Return name and report of the node with the highest position.

        Return None if no node has reported a higher position than the directory has.
        """
        reports = self._log.reports()
        highest = max(reports, key=lambda name: reports[name].position, default="")
        if highest and reports[highest].position > survey.position:
            return highest, reports[highest]
        return None
