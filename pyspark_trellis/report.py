"""`trellis pipeline report`: makes one self-contained HTML page about traffic, bindings and
recommendations.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_trellis import history as hist
from pyspark_trellis import plots
from pyspark_trellis.advise import Advice, advise
from pyspark_trellis.audit import Audit, audit
from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.spark_topics import SparkTopics
from pyspark_trellis.whatif import WhatIf, what_if

#: The maximum number of rows of a table, and of bars of a plot.
ROWS, BARS = 12, 12
_STYLE: Final = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --box: #f3f6f8; --line: #ddd;
  --faint: #666; --bad: #b3360b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #16191c; --box: #23282d; --line: #3a4046; --faint: #9aa3ab;
    --bad: #ff8a5c; }
  svg { filter: invert(.9) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
body { color: var(--text); background: var(--page); }
h1 { font-size: 1.6rem; margin: .3em 0; }
h2 { font-size: 1.2rem; margin: 2.2em 0 .4em; border-top: 1px solid var(--line); padding-top: 1em; }
h3 { font-size: 1rem; margin: 1.4em 0 .3em; } p { max-width: 45rem; margin: .4em 0; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0;
  list-style: none; }
.figures li { background: var(--box); border-radius: .5rem; padding: .6rem 1rem; min-width: 7rem;
  flex: 1 1 7rem; }
.figures b { display: block; font-size: 1.4rem; } .figures .bad b { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem 2rem; align-items: start; }
figure { margin: 0; } svg { width: 100%; height: auto; max-width: 36rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th { text-align: left; font-weight: 600; }
th, td { padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; } code { font-size: .92em;
  overflow-wrap: anywhere; }
.more, footer { color: var(--faint); font-size: .9rem; } footer { margin-top: 2rem; }
@media (max-width: 40rem) {
  thead { display: none; } tr { display: block; border-bottom: 1px solid var(--line);
    padding: .4rem 0; }
  td, td.n { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    text-align: right; }
  td::before { content: attr(data-name); color: var(--faint); text-align: left; flex: 0 0 auto; }
}
"""


class ReportPage:
    """The parts of the HTML page, in their order."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, html: str) -> None:
        """Append HTML to the page."""
        self._parts.append(html)

    def text(self, text: str) -> None:
        """Append a paragraph to the page; `text` may contain HTML tags."""
        self.add(f"<p>{text}</p>")

    def plots(self, drawn: Iterable[str]) -> None:
        """Append plots, given as SVG, to the page."""
        self.add(
            '<div class="plots">' + "".join(f"<figure>{each}</figure>" for each in drawn) + "</div>"
        )

    def table(
        self, title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], none: str = ""
    ) -> None:
        """Append a table to the page, with numbers right-aligned.

        A text that begins with a colon is shown as code. If there are no rows, the text `none` is
        shown, or nothing if `none` is empty.
        """
        if not rows:
            if none:
                self.add(f"<h3>{escape(title)}</h3><p>{escape(none)}</p>")
            return
        right = [isinstance(cell, int | float) for cell in rows[0]]
        head = "".join(
            f"<th{' class=n' if number else ''}>{escape(name)}</th>"
            for name, number in zip(columns, right, strict=True)
        )
        body = "".join("<tr>" + "".join(map(_cell, row, columns)) + "</tr>" for row in rows[:ROWS])
        more = f'<p class="more">and {len(rows) - ROWS:,} more</p>' if len(rows) > ROWS else ""
        self.add(
            f'<h3>{escape(title)}</h3><div class="table"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{more}"
        )

    def whole(self, title: str) -> str:
        """Return the whole page as an HTML document with this title."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
            f"<body>{''.join(self._parts)}"
            "<footer>Made by <code>trellis pipeline report</code>. The time of a message is the "
            "publisher's timestamp; if the message has none, it is the time at which the broker "
            "received the message.</footer>"
            "</body></html>\n"
        )


def _cell(cell: Any, column: str) -> str:
    """Return a table cell; `column` labels it on screens too narrow for a table head."""
    name = f'data-name="{escape(column)}"'
    if isinstance(cell, int):
        return f"<td class=n {name}>{cell:,}</td>"
    if isinstance(cell, float):
        return f"<td class=n {name}>{cell:,.2f}</td>"
    text = str(cell)
    return (
        f"<td {name}><code>{escape(text[1:]) or '(empty)'}</code></td>"
        if text.startswith(":")
        else f"<td {name}>{escape(text)}</td>"
    )


def make(
    parts: DataFrame,
    definitions: DefinitionsFile,
    proposed: DefinitionsFile | None = None,
    sources: Iterable[str] = (),
) -> str:
    """Return the HTML report on `parts`, the message counts by minute and topic (a rollup).

    The rollup was written by `trellis pipeline traffic`, or is computed from a journal. With
    `proposed` definitions, the report has a what-if section. `sources` are lines of text about the
    origin of the bindings.
    """
    kept = parts.cache()
    try:
        history = hist.summed(kept).cache()
        try:
            span = hist.span(history)
            page = ReportPage()
            _head(page, span, history, sources)
            if span.messages:
                _traffic(page, kept, history)
                topics = SparkTopics(history)
                _audit(page, audit(topics, definitions))
                if proposed is not None:
                    _whatif(page, what_if(topics, definitions, proposed), proposed.name)
                _advise(page, advise(topics, definitions))
            else:
                page.text("Nothing was published.")
        finally:
            history.unpersist()
    finally:
        kept.unpersist()
    return page.whole("Trellis: what was published, and where it went")


def _head(page: ReportPage, span: Span, history: DataFrame, sources: Iterable[str]) -> None:
    sums = history.agg(
        *[F.coalesce(F.sum(name), F.lit(0)) for name in ("size", "fanout", "unroutable")]
    ).collect()[0]
    page.add("<h1>What was published, and where it went</h1>")
    if span.first is not None and span.last is not None:
        page.text(f"{span.first:%Y-%m-%d %H:%M} to {span.last:%Y-%m-%d %H:%M} UTC")
    for line in sources:
        page.add(f'<p class="more">{escape(line)}</p>')
    lost = sums[2] / span.messages if span.messages else 0.0
    figures = [
        ("messages", f"{span.messages:,}", ""),
        ("topics", f"{span.topics:,}", ""),
        ("messages a second", f"{span.messages / span.seconds:,.1f}", ""),
        ("MB of bodies", f"{sums[0] / 1e6:,.1f}", ""),
        ("copies a message", f"{sums[1] / max(span.messages, 1):,.2f}", ""),
        ("unroutable", f"{lost:.1%}", "bad" if sums[2] else ""),
    ]
    page.add(
        '<ul class="figures">'
        + "".join(f'<li class="{kind}"><b>{value}</b>{name}</li>' for name, value, kind in figures)
        + "</ul>"
    )


def _traffic(page: ReportPage, parts: DataFrame, history: DataFrame) -> None:
    page.add("<h2>Traffic</h2>")
    page.text(
        "A message counts once, whatever the number of its copies; each queue or MQTT session that "
        "received it has a copy. "
        "A message is unroutable if no queue or session received it: it is lost, and its publisher "
        "rarely gets a notice."
    )
    rows = [
        tuple(row)
        for row in parts.groupBy("minute", "vhost", "exchange")
        .agg(F.sum("messages"), F.sum("fanout"), F.sum("unroutable"))
        .orderBy("minute")
        .collect()
    ]
    moments = sorted({row[0] for row in rows})
    totals: dict[str, int] = {}
    for row in rows:
        name = row[2] or "(default exchange)"
        totals[name] = totals.get(name, 0) + row[3]
    named = sorted(totals, key=lambda name: -totals[name])[: plots.SERIES]
    indexes = {moment: at for at, moment in enumerate(moments)}
    by_exchange: dict[str, list[float]] = {name: [0.0] * len(moments) for name in named}
    copies, lost = [0.0] * len(moments), [0.0] * len(moments)
    for minute, _, exchange, messages, fanout, unroutable in rows:
        at = indexes[minute]
        name = exchange or "(default exchange)"
        by_exchange.setdefault(name if name in named else "others", [0.0] * len(moments))[at] += (
            messages
        )
        copies[at] += fanout
        lost[at] += unroutable
    top = [
        tuple(row)
        for row in history.orderBy(F.desc("messages"), "topic")
        .limit(BARS)
        .select("topic", "messages")
        .collect()
    ]
    counts = [
        row[0]
        for row in history.orderBy(F.desc("messages")).select("messages").limit(200_000).collect()
    ]
    page.plots(
        [
            plots.over_time(
                "Messages by exchange",
                "messages a minute",
                {name: (moments, values) for name, values in by_exchange.items()},
            ),
            plots.over_time(
                "Copies to queues and sessions",
                "copies a minute",
                {"copies": (moments, copies)},
            ),
            plots.over_time(
                "Unroutable messages",
                "messages a minute",
                {"messages that reached no queue": (moments, lost)},
            ),
            plots.bars(
                "Topics with the most messages",
                "messages",
                [row[0] for row in top],
                {"messages": [row[1] for row in top]},
            ),
            plots.share("Share of the messages in the most frequent topics", counts),
        ]
    )


def _audit(page: ReportPage, findings: Audit) -> None:
    page.add("<h2>Bindings</h2>")
    page.text(
        "The published topics compared with the bindings: bindings that do nothing, and topics "
        "that no binding matches. The nearest binding is the one that differs from the topic in "
        "the fewest words. Often the topic or the key is misspelled."
    )
    page.text(
        f"Of {findings.bindings:,} bindings, {len(findings.dead):,} matched no published topic, "
        f"and {len(findings.duplicate) + len(findings.subsumed):,} "
        "are redundant: another binding to the same destination takes all their topics. Redundant "
        "bindings can be removed without any effect."
    )
    page.table(
        "Unroutable topics",
        ("exchange", "topic", "messages", "nearest binding", "different words"),
        [
            (
                f":{each.exchange}",
                f":{each.topic}",
                each.messages,
                f":{each.nearest}" if each.nearest is not None else "none",
                each.words,
            )
            for each in findings.unroutable
        ],
        "Every message reached a queue.",
    )
    page.table(
        "Dead: bindings that no published topic matched",
        ("exchange", "key", "goes to"),
        [(f":{each.source}", f":{each.key}", f":{each.destination}") for each in findings.dead],
        "None.",
    )
    page.table(
        "Redundant: bindings whose topics another binding takes",
        ("exchange", "key", "goes to", "covered by"),
        [
            (
                f":{each.binding.source}",
                f":{each.binding.key}",
                f":{each.binding.destination}",
                f":{each.by.key}",
            )
            for each in [*findings.duplicate, *findings.subsumed]
        ],
        "None.",
    )
    page.table(
        "Overlapping: two bindings to one destination that take the same topics",
        ("one key", "other key", "destination of both", "messages that match both"),
        [
            (f":{each.one.key}", f":{each.other.key}", f":{each.one.destination}", each.messages)
            for each in findings.overlapping
        ],
    )


def _whatif(page: ReportPage, answer: WhatIf, name: str) -> None:
    seconds = answer.span.seconds
    page.add(f"<h2>What if: <code>{escape(name.rpartition('/')[2])}</code></h2>")
    page.text(
        "The same messages, routed by the proposed definitions. "
        + (
            "<strong>Messages would be lost.</strong>"
            if answer.breaks
            else "No message would be lost."
        )
    )
    changed = sorted(
        [each for each in answer.queues if each.before != each.after],
        key=lambda each: -max(each.before or 0, each.after or 0),
    )
    if changed:
        shown = changed[:BARS]
        page.plots(
            [
                plots.bars(
                    "Queues with more or fewer messages",
                    "messages a second",
                    [str(each) for each in shown],
                    {
                        "now": [(each.before or 0) / seconds for each in shown],
                        "then": [(each.after or 0) / seconds for each in shown],
                    },
                )
            ]
        )
    page.table(
        "Topics that would reach no queue any more",
        ("exchange", "topic", "messages"),
        [(f":{each.exchange}", f":{each.topic}", each.messages) for each in answer.lost],
        "None.",
    )
    page.table(
        "Queues that would receive nothing any more",
        ("queue", "messages before"),
        [(f":{each}", each.before) for each in answer.starved],
    )
    page.table(
        "Queues that would receive messages for the first time",
        ("queue", "messages after"),
        [(f":{each}", each.after) for each in answer.newly_hit],
    )


def _advise(page: ReportPage, advice: Advice) -> None:
    page.add("<h2>Matching</h2>")
    page.text(
        "The broker looks up the bindings of a topic once and caches them. Here its matchers look "
        "up the published topics without a cache. The fastest matcher is recommended if it is "
        "clearly faster than <code>auto</code>."
    )
    page.text(
        f"A route cache of {advice.routes:,} entries holds all topics. The topics to prewarm, "
        "which are looked up at the broker's "
        f"start, carry {advice.carried:.0%} of the messages."
    )
    measured = [each for each in advice.exchanges if each.measured]
    if measured:
        names = list(dict.fromkeys(name for each in measured for name in each.measured))
        page.plots(
            [
                plots.bars(
                    "Time of an uncached lookup, by matcher",
                    "microseconds (median)",
                    [each.exchange for each in measured],
                    {
                        name: [each.measured.get(name, 0) / 1000 for each in measured]
                        for name in names
                    },
                )
            ]
        )
    page.table(
        "Topic exchanges",
        ("exchange", "bindings", "topics", "messages", "matcher", "to prewarm"),
        [
            (
                f":{each.exchange}",
                each.bindings,
                each.topics,
                each.messages,
                each.matcher or "auto",
                len(each.prewarm),
            )
            for each in advice.exchanges
        ],
    )
