"""`trellis report`: keeps a report of each period in a directory, and shows the changes since the
previous report.

    DIRECTORY/report-20260302T120000Z.json     the report whose period ends at this time

A report has the totals of the traffic, and four kinds of findings: dead, duplicate and subsumed
bindings (see `audit`), and topics with messages that reached no queue when they were published.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis import offsets
from pyspark_trellis.answering import options_of
from pyspark_trellis.arrow_feed import JournalFeed
from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.audit import audit
from pyspark_trellis.counts import COUNTS, KEYS
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.files import write
from pyspark_trellis.job_bindings import JobBindings, read_bindings
from pyspark_trellis.topics import MOST
from pyspark_trellis.traffic_table import unroutable_topics

#: The kinds of findings: their names in a report, and in texts for one and for several.
KINDS: Final = {
    "dead": ("dead binding", "dead bindings"),
    "duplicate": ("duplicate binding", "duplicate bindings"),
    "subsumed": ("subsumed binding", "subsumed bindings"),
    "unroutable": ("unroutable topic", "unroutable topics"),
}
_FORMAT: Final = 1
_NAME: Final = "report-%Y%m%dT%H%M%SZ.json"
#: Seconds from a failed attempt to make a report to the next attempt.
_RETRY: Final = 60
#: The maximum number of changed findings of one kind that are printed.
_SHOWN: Final = 10


@dataclass(frozen=True)
class KeptReport:
    """The report of a period, as the report's file contains it.

    `findings` has a sorted list of texts for each of KINDS; each text names one binding or topic.
    """

    since: str
    until: str
    topics: int
    traffic: dict[str, int]
    findings: dict[str, list[str]]
    said_by: list[str]

    @property
    def ends_at(self) -> datetime:
        """The end of the period."""
        return datetime.fromisoformat(self.until)


@dataclass(frozen=True)
class ReportChanges:
    """The differences between a report and `before`, the previous report.

    `new` has the findings that only the later report has, `gone` the findings that only the earlier
    report has. Both map each of KINDS to a list of findings.
    """

    before: KeptReport
    new: dict[str, list[str]]
    gone: dict[str, list[str]]


class KeptReports:
    """The reports in a directory; at most `most` are kept."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory: Final = directory
        self._most: Final = most

    def before(self, until: datetime | None) -> KeptReport | None:
        """Return the latest report whose period ends before `until`; None if there is none.

        If `until` is None, return the latest of all reports. Raises PipelineError.
        """
        for path in reversed(self._files()):
            report = _read(path)
            if until is None or report.ends_at < until:
                return report
        return None

    def add(self, report: KeptReport) -> Path:
        """Write a report, and return the path of its file.

        Remove the oldest reports if there are too many. Raises PipelineError.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(
                f"--keep: cannot create the directory {self._directory}: {error.strerror}; name a "
                "directory that this user may create"
            ) from None
        path = self._directory / report.ends_at.strftime(_NAME)
        document = {"format": _FORMAT} | asdict(report)
        write(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        for old in self._files()[: -self._most]:
            old.unlink(missing_ok=True)
        return path

    def _files(self) -> list[Path]:
        """Return the files of the reports, the oldest first."""
        return sorted(self._directory.glob("report-*Z.json"))


def _read(path: Path) -> KeptReport:
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != _FORMAT:
            raise ValueError("another version of Trellis wrote it")
        report = KeptReport(**document)
        if report.ends_at.tzinfo is None or set(report.findings) != set(KINDS):
            raise ValueError("another version of Trellis wrote it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"cannot read the earlier report {path} ({error}): move the file away to start a new "
            "series of reports"
        ) from None
    return report


def make(
    arguments: argparse.Namespace, until: datetime, previous: KeptReport | None = None
) -> KeptReport:
    """Return the report of the messages that the broker received in the period before `until`.

    With --every, a report may be late, for example after a restart. If the period is as long as the
    interval, the period of a late report begins at the end of the `previous` report, so that each
    message is in a report. Raises PipelineError.
    """
    try:
        since = until - timedelta(seconds=arguments.over)
    except OverflowError:  # The period begins before the year 1.
        since = datetime.min.replace(tzinfo=UTC)
    if previous is not None and arguments.every is not None and arguments.over >= arguments.every:
        since = min(since, previous.ends_at)
    bindings = read_bindings(arguments)
    times = (int(time.timestamp() * 1_000_000) for time in (since, until))
    sums = JournalFeed(options_of(arguments), KEYS, offsets.LATEST, *times).sums()
    return KeptReport(
        since.isoformat(timespec="seconds"),
        until.isoformat(timespec="seconds"),
        sums.num_rows,
        {name: pc.sum(sums.column(name)).as_py() or 0 for name in COUNTS},
        _findings(sums, bindings),
        list(bindings.sources),
    )


def _findings(sums: pa.Table, bindings: JobBindings) -> dict[str, list[str]]:
    topics = ArrowTopics(sums)
    findings = audit(topics, bindings.effective, recorded=bindings.recorded or topics.vhosts())
    lost = [
        f"'{each.topic}' to exchange '{each.exchange}' in vhost '{each.vhost}'"
        for each in unroutable_topics(sums, None).rows
    ]
    return {
        "dead": sorted(map(str, findings.dead)),
        "duplicate": sorted(str(each.binding) for each in findings.duplicate),
        "subsumed": sorted(str(each.binding) for each in findings.subsumed),
        "unroutable": sorted(lost),
    }


def changes(before: KeptReport, report: KeptReport) -> ReportChanges:
    """Return the differences between two reports."""
    new, gone = {}, {}
    for kind in KINDS:
        old, now = set(before.findings[kind]), set(report.findings[kind])
        new[kind], gone[kind] = sorted(now - old), sorted(old - now)
    return ReportChanges(before, new, gone)


def text_of(report: KeptReport, differences: ReportChanges | None) -> list[str]:
    """Return the lines of text about a report and its differences from the previous report."""
    traffic = report.traffic
    since, until = (datetime.fromisoformat(text) for text in (report.since, report.until))
    lines = [f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC: {_totals(report)}"]
    counts = ", ".join(_count(len(report.findings[kind]), kind) for kind in KINDS)
    if differences is None:
        return [*lines, *report.said_by, f"first report: {counts}"]
    changed = _since_text(differences.before.ends_at, report.ends_at)
    had = differences.before.traffic["messages"]
    if had:
        growth = traffic["messages"] / had - 1
        lines[0] += f"; the number of messages changed by {growth:+.1%} {changed}"
    lines += [*report.said_by, counts]
    for sign, texts, some in (("+", differences.new, "new "), ("-", differences.gone, "resolved ")):
        for kind, names in texts.items():
            if not names:
                continue
            count = _count(len(names), kind, some)
            lines.append(f"{count} {changed}")
            lines += [f"  {sign} {name}" for name in names[:_SHOWN]]
            if len(names) > _SHOWN:
                lines.append(f"  ... and {len(names) - _SHOWN:,} more")
    if not any([*differences.new.values(), *differences.gone.values()]):
        lines.append(f"no finding is new or resolved {changed}")
    if MOST in (len(one.findings["unroutable"]) for one in (differences.before, report)):
        lines.append(f"reports compare only the {MOST:,} topics with the most unroutable messages")
    return lines


def _totals(report: KeptReport) -> str:
    traffic = report.traffic
    return (
        f"{traffic['messages']:,} messages of {report.topics:,} topics, "
        f"{traffic['unroutable']:,} unroutable"
    )


def _count(number: int, kind: str, some: str = "") -> str:
    return f"{number:,} {some}{KINDS[kind][number != 1]}"


def _since_text(before: datetime, now: datetime) -> str:
    days = (now.date() - before.date()).days
    if days == 0:
        return f"since {before:%H:%M} UTC"
    return "since yesterday" if days == 1 else f"since {before:%Y-%m-%d}"


def run(arguments: argparse.Namespace) -> int:
    """Make one report; return the exit code. With --every, make more at this interval until Ctrl-C.

    Raises PipelineError if the first report fails. Errors of later reports are printed.
    """
    reports = KeptReports(arguments.directory, arguments.most)
    if arguments.every is None:
        until = arguments.until
        return _report(arguments, reports, _present_time() if until is None else _utc(until))
    first = True
    while True:
        latest = reports.before(None)
        if latest is not None:
            due = latest.ends_at + timedelta(seconds=arguments.every)
            if (left := (due - _present_time()).total_seconds()) > 0:
                print(
                    f"the next report is due at {due:%Y-%m-%d %H:%M:%S} UTC; press Ctrl-C to stop"
                )
                sys.stdout.flush()
                time.sleep(left)
        try:
            _report(arguments, reports, _present_time())
        except PipelineError as error:
            if first:
                raise
            print(
                f"cannot make the report: {error}; the next attempt is in {_RETRY} s",
                file=sys.stderr,
            )
            time.sleep(_RETRY)
        first = False


def _report(arguments: argparse.Namespace, reports: KeptReports, until: datetime) -> int:
    before = reports.before(until)
    report = make(arguments, until, before)
    differences = None if before is None else changes(before, report)
    path = reports.add(report)
    if arguments.json is not None:
        document: dict[str, Any] = asdict(report)
        document["before"] = None if differences is None else differences.before.until
        document["new"], document["gone"] = (
            ({}, {}) if differences is None else (differences.new, differences.gone)
        )
        text = json.dumps(document, ensure_ascii=False)
        if arguments.json == "-":
            print(text, flush=True)
        else:
            write(Path(arguments.json), text + "\n")
    if arguments.json != "-":
        print("\n".join([*text_of(report, differences), f"report written to {path}"]), flush=True)
    return int(arguments.check and differences is not None and any(differences.new.values()))


def _present_time() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _utc(at: float) -> datetime:
    """Return a time in seconds since 1970 as a datetime. Raises PipelineError."""
    try:
        return datetime.fromtimestamp(at, UTC).replace(microsecond=0)
    except (ValueError, OverflowError, OSError):
        raise PipelineError("--until must be a time in the years 1 to 9999 (UTC)") from None
