"""Prints the answers of the jobs as text.

An answer has the number of messages and topics of the history and its time range, the sources of
the bindings, tables of the most serious findings, and a summary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pyspark_trellis.advise import Advice
from pyspark_trellis.audit import Audit
from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import receiver_text
from pyspark_trellis.traffic_table import TIMES, TrafficTable, UnroutableTopics
from pyspark_trellis.whatif import WhatIf

#: The maximum number of rows of a printed table; the output of --json has no limit.
SHOWN: Final = 20


def head(span: Span, sources: Iterable[str]) -> None:
    """Print the numbers of messages and topics, their time range, and the bindings' sources."""
    when = (
        f", {span.first:%Y-%m-%d %H:%M:%S} to {span.last:%Y-%m-%d %H:%M:%S} UTC"
        if span.first is not None and span.last is not None
        else ""
    )
    print(f"{span.messages:,} messages of {span.topics:,} topics{when}")
    for line in sources:
        print(line)


def whatif(answer: WhatIf, compared: bool) -> None:
    """Print the answer of whatif. Queues that would receive nothing any more come first, then the
    largest changes.

    `compared` is True if the messages per queue before the change are known.
    """
    seconds = answer.span.seconds
    rows = sorted(
        answer.queues,
        key=lambda change: (
            not (change.before and not change.after),
            -abs((change.after or 0) - (change.before or 0)),
            change.vhost,
            str(change),
        ),
    )
    table(
        "queue",
        [
            (
                f"{change.vhost} {change}",
                _rate(change.before, seconds),
                _rate(change.after, seconds),
                "gets its first messages"
                if compared and change.after and not change.before
                else "STARVED"
                if change.before and not change.after
                else "",
            )
            for change in rows
        ],
        "before, msg/s",
        "after, msg/s",
        "",
    )
    table(
        "topics that would be lost",
        [
            (_topic(each.vhost, each.exchange, each.topic), f"{each.messages:,}")
            for each in answer.lost
        ],
        "messages",
    )
    if answer.unknown:
        print(
            f"the destinations of {answer.unknown:,} messages are unknown, because they reach an "
            "exchange that routes by more than the topic, such as a headers exchange"
        )
    print(
        "the change breaks routing: a topic or a queue would lose all its messages"
        if answer.breaks
        else "the change breaks nothing: no topic or queue would lose all its messages"
    )


def audit(findings: Audit) -> None:
    """Print the findings of an audit."""
    table("dead: no published topic matched", [(str(each),) for each in findings.dead])
    table(
        "duplicate",
        [
            (str(each.binding), f"same as '{each.by.key}', binding {each.by.number}")
            for each in findings.duplicate
        ],
        "",
    )
    table(
        "subsumed",
        [(str(each.binding), f"covered by '{each.by.key}'") for each in findings.subsumed],
        "",
    )
    table(
        "overlapping",
        [
            (
                f"'{each.one.key}' and '{each.other.key}' to '{receiver_text(each.one.receiver)}'",
                f"{each.messages:,}",
            )
            for each in findings.overlapping
        ],
        "messages",
    )
    table(
        "unroutable",
        [
            (
                _topic(each.vhost, each.exchange, each.topic),
                f"{each.messages:,}",
                _near(each.nearest, each.words),
            )
            for each in findings.unroutable
        ],
        "messages",
        "nearest",
    )
    print(
        f"{findings.bindings} bindings: {len(findings.dead)} dead, "
        f"{len(findings.duplicate)} duplicate, {len(findings.subsumed)} subsumed; "
        f"{len(findings.unroutable)} unroutable topics"
    )


def advise(advice: Advice) -> None:
    """Print the advice for each exchange and for the route cache."""
    table(
        "exchange",
        [
            (
                f"{each.vhost} {each.exchange}",
                f"{each.bindings:,}",
                f"{each.topics:,}",
                each.matcher or "auto (no matcher is clearly faster)",
                ", ".join(f"{name} {ns}" for name, ns in each.measured.items()),
            )
            for each in advice.exchanges
        ],
        "bindings",
        "topics",
        "matcher",
        "ns per lookup",
    )
    print(
        f"route cache: {advice.routes:,} entries (limits.routes); prewarmed topics carry "
        f"{advice.carried:.0%} of the messages"
    )


def profile(path: Path) -> None:
    """Print the path of the profile file, and how to make the broker read this file."""
    print(
        f"{path} written: set the broker's matcher.profile to this file; if it is set already, "
        "send SIGHUP to the broker"
    )


def traffic(traffic_table: TrafficTable) -> None:
    """Print the numbers of published messages by group.

    Groups by time (such as hours) are printed with the latest first, all other groups (such as
    topics) with the largest first.
    """
    times = traffic_table.by in TIMES
    rows = traffic_table.rows[::-1] if times else traffic_table.rows
    table(
        traffic_table.by,
        [
            (
                _group(traffic_table.by, row.name),
                f"{row.messages:,}",
                f"{row.size:,}",
                f"{row.fanout:,}",
                f"{row.unroutable:,}",
            )
            for row in rows
        ],
        "messages",
        "bytes",
        "copies",
        "unroutable",
    )


def _group(by: str, name: tuple[Any, ...]) -> str:
    if by == "topic":
        return _topic(*name)
    if by in TIMES:
        return f"{name[0]:%Y-%m-%d %H:%M} UTC"
    return " ".join(each or "(default exchange)" for each in name)


def unroutable(unroutable_topics: UnroutableTopics) -> None:
    """Print the topics with messages that reached no queue, each with the nearest binding."""
    table(
        "unroutable",
        [
            (
                _topic(each.vhost, each.exchange, each.topic),
                f"{each.unroutable:,}",
                f"{each.messages:,}",
                {"queue": "reaches a queue", "nowhere": "reaches no queue"}.get(
                    each.now or "", each.now or "-"
                ),
                _near(each.nearest, each.words),
            )
            for each in unroutable_topics.rows
        ],
        "messages",
        "of all",
        "with present bindings",
        "nearest",
    )
    print(
        f"{unroutable_topics.unroutable:,} messages of {unroutable_topics.topics:,} topics reached "
        "no queue"
        if unroutable_topics.topics
        else "every message reached a queue"
    )


def _near(key: str | None, words: int) -> str:
    if key is None:
        return "no binding"
    return f"'{key}', {words} word{'s' * (words != 1)} different"


def _topic(vhost: str, exchange: str, topic: str) -> str:
    return f"{vhost} {exchange or '(default exchange)'} {topic!r}"


def _rate(messages: int | None, seconds: float) -> str:
    if messages is None:
        return "-"
    rate = messages / seconds
    return f"{rate:,.2f}" if rate >= 0.1 or not messages else f"{rate:.2g}"


def table(title: str, rows: list[tuple[str, ...]], *columns: str) -> None:
    """Print a table, with the first column left-aligned and the others right-aligned.

    Print at most SHOWN rows; print nothing if there are no rows.
    """
    if not rows:
        return
    shown_rows = [(title, *columns), *rows[:SHOWN]]
    widths = [max(len(row[at]) for row in shown_rows) for at in range(len(columns) + 1)]
    print()
    for row in shown_rows:
        print(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
    if len(rows) > SHOWN:
        print(f"... and {len(rows) - SHOWN:,} more")
