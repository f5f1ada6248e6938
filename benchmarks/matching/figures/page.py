"""Writes the results of `trellis bench matching` as Markdown: the generated part of
docs/matching.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from peers.table import figure, rows

from figures import articles
from figures.targets import size, targets
from trellis.bench.matching.results import MatchingResults, ResultCell

_GROWING = {
    "tp": "tp: three words, as in article 1's throughput test",
    "iot": "iot: wildcards everywhere",
    "adv": "adv: mostly wildcards",
}

#: Further measurements: the words of the sentence above a table, and the unit of its figures.
_FURTHER = {
    "subscribe": ("of one subscription", "ns per subscription"),
    "unsubscribe": ("of one unsubscription", "ns per unsubscription"),
    "any": ("of a test whether any subscriber matches a topic", "ns per test"),
    "first": ("of the first lookup of each topic", "ns per first lookup"),
    "load": (
        "of each subscription while an empty matcher gets all its subscriptions",
        "ns per subscription",
    ),
}


def page(results: MatchingResults, pictures: Mapping[str, tuple[str, str]]) -> str:
    """Return the generated part of the document; `pictures` has (title, path) of charts by name."""
    return "\n\n".join(part for part in _parts(results, pictures) if part) + "\n"


def _parts(results: MatchingResults, pictures: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield _opening(results)
    yield f"### Targets\n\n{_targets(results)}"
    for workload, title in _GROWING.items():
        keys = _keys(results, workload, "workload")
        if keys:
            yield f"### {title}"
            yield _picture(pictures, f"lookup-{workload}")
            yield (
                "The table shows the time of one lookup in nanoseconds, for each number of "
                "patterns. Each topic was looked up once before the measurement.\n\n"
                f"{_by_size(results, keys, 'lookup', 'ns per lookup')}"
            )
            yield (
                "The table shows the memory of a matcher in bytes, divided by the number of its "
                "subscriptions.\n\n"
                + _by_size(
                    results,
                    _keys(results, workload, "memory"),
                    "octets",
                    "bytes per subscription",
                )
            )
            yield "<details><summary>Subscribing, first lookups, testing for any match</summary>"
            for name, (words, unit) in _FURTHER.items():
                yield (
                    f"The table shows, in nanoseconds, the time {words}.\n\n"
                    f"{_by_size(results, keys, name, unit)}"
                )
            yield "</details>"
    if _keys(results, "article", "cold"):
        yield "### Article 1"
        yield _picture(pictures, "article")
        yield _article(results)
        yield (
            "The table shows all contenders in the test of article 1: times in nanoseconds, cold "
            "(in an empty matcher) and hot (with 1,000 subscriptions), and the memory per "
            f"subscription in bytes.\n\n{_article_all(results)}"
        )
    yield _picture(pictures, "memory")
    threads = [key for key, case in results.cases.items() if case.part == "threads"]
    if threads:
        yield "### Threads: articles 1 and 2"
        yield (
            "Each worker (a thread) does 1,000 operations. The table shows the wall-clock time in "
            "milliseconds until all workers have ended, for these tests:\n\n"
            "- `50/50 N`: of N workers, half subscribe and half look up topics;\n"
            "- `90/10 N`: N workers; of ten operations of each worker, one subscribes and nine "
            "look up a topic;\n"
            "- `1:1 N`: N workers subscribe, and N further workers look up topics;\n"
            "- `1:3 N`: N workers subscribe, and 3 N further workers look up topics."
        )
        for name in ("threads-50", "threads-90", "threads-1-1", "threads-1-3"):
            yield _picture(pictures, name)
        yield _variants(results, threads, "ms", "ms")
    churn = [key for key, case in results.cases.items() if case.part == "churn"]
    if churn:
        yield "### Cached answers while subscriptions change"
        yield _picture(pictures, "churn")
        yield (
            "The tables show nanoseconds per publication. A figure includes the time of the "
            "changes of subscriptions, divided by the number of publications."
        )
        for workload in dict.fromkeys(results.cases[key].workload for key in churn):
            keys = [key for key in churn if results.cases[key].workload == workload]
            yield (
                f"`{workload}`: {results.cases[keys[0]].text}. A column `a change in N` has one "
                "change of a subscription per N publications.\n\n"
                f"{_variants(results, keys, 'publish', 'ns per publication')}"
            )
    attack = _keys(results, "attack", "workload")
    if attack:
        yield "### Patterns made to be slow"
        yield _picture(pictures, "attack")
        yield "\n".join(
            f"- `{results.cases[key].workload}`: {results.cases[key].text}" for key in attack
        )
        yield (
            "The table shows nanoseconds per lookup. The four attacks `hashes-...` have a single "
            "topic each, so each lookup is timed alone, and the timing adds about 400 ns to the "
            "figure.\n\n"
            + _table(
                results,
                {results.cases[key].workload: key for key in attack},
                "lookup",
                "ns per lookup",
            )
        )
    yield from _one_filter(results)
    yield from _claims(results)
    yield f"### Contenders\n\n{_contenders(results)}"


def _opening(results: MatchingResults) -> str:
    about = results.environment
    rounds = {
        len(cell.rounds)
        for of in results.cells.values()
        for key, cell in of.items()
        if results.cases[key].kind == "workload"
    } - {0}
    counts = " to ".join(
        str(count) for count in sorted({min(rounds, default=0), max(rounds, default=0)})
    )
    runs, loads = about.get("commands", [about["command"]]), about.get("loads", [about["load"]])
    how = (
        f"with `{runs[0]}`"
        if len(runs) == 1
        else f"in {len(runs)} runs; all contenders of a table column were in the same run"
    )
    before = f"{min(loads):.1f} to {max(loads):.1f}" if len(loads) > 1 else f"{loads[0]:.1f}"
    measured = (
        f"Measured on {about['time'][:10]} {how}. Figures are medians of {counts} interleaved "
        "rounds.\n"
        f"Machine: {about['cpus']} × {about['cpu']}, {about['kernel']}, {about['python']}, load "
        f"average before the measurement {before}. "
        f"Each figure of Trellis and of PyPI's packages includes {results.loop_ns:.0f} ns for the "
        "loop of the measuring program.\n"
        f"Noise: {_noise(results)}"
    )
    if len(runs) == 1:
        return measured
    return (
        f"{measured}\n\n<details><summary>The commands</summary>\n\n"
        + "".join(f"    {run}\n" for run in runs)
        + "\n</details>"
    )


def _noise(results: MatchingResults) -> str:
    spreads = sorted(
        cell.spread("lookup")
        for of in results.cells.values()
        for cell in of.values()
        if "lookup" in cell.medians and len(cell.rounds) > 1
    )
    if not spreads:
        return "a single round does not show it."
    middle, high = spreads[len(spreads) // 2], spreads[len(spreads) * 9 // 10]
    return (
        "for each lookup figure, the noise is the difference between the highest and the lowest "
        f"round, divided by the median of the rounds. It is at most {middle:.0%} for half of all "
        f"figures, and below {high:.0%} for nine of ten."
    )


def _keys(results: MatchingResults, part: str, kind: str) -> list[str]:
    return [key for key, case in results.cases.items() if (case.part, case.kind) == (part, kind)]


def _picture(pictures: Mapping[str, tuple[str, str]], name: str) -> str:
    return f"![{pictures[name][0]}]({pictures[name][1]})" if name in pictures else ""


def _cell(results: MatchingResults, name: str, key: str, which: str) -> str:
    cell = results.cells.get(name, {}).get(key, ResultCell())
    if cell.why:
        return f"({cell.why})"
    value = cell.medians.get(which)
    return "" if value is None else figure(value) if value else "0"


def _table(results: MatchingResults, columns: Mapping[str, str], which: str, unit: str) -> str:
    lines = []
    for name, about in results.contenders.items():
        cells = [_cell(results, name, key, which) for key in columns.values()]
        if any(cells):
            lines.append([about.title if about.ours else f"*{about.title}*", *cells])
    return rows([unit, *columns], lines)


def _by_size(results: MatchingResults, keys: Sequence[str], which: str, unit: str) -> str:
    columns = {f"{size(results.cases[key].size)} patterns": key for key in keys}
    return _table(results, columns, which, unit)


def _variants(results: MatchingResults, keys: Sequence[str], which: str, unit: str) -> str:
    return _table(results, {results.cases[key].variant: key for key in keys}, which, unit)


def _targets(results: MatchingResults) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    return (
        "Each row names an algorithm of Trellis, a workload, a number of patterns (1k to 1M) and "
        "another library. The figure is the lookup time of the algorithm divided by the lookup "
        "time of the library. Rows with another figure name it in their first column.\n\n"
    ) + rows(
        ["target", "bound of the figure", "measured figure", "met"],
        [[each.what, each.bound, each.measured, words[each.met]] for each in targets(results)],
    )


def _article(results: MatchingResults) -> str:
    cold, hot = _keys(results, "article", "cold")[0], _keys(results, "article", "workload")[0]
    lines = []
    for row in articles.ROWS:
        lines.append(
            [
                f"“{row.name}”",
                *(figure(value) for value in (*row.cold, *row.hot)),
                f"{row.rate:,.0f}",
            ]
        )
        for name in row.same:
            if name in results.cells:
                cells = [
                    _cell(results, name, key, which)
                    for key in (cold, hot)
                    for which in ("subscribe", "unsubscribe", "lookup")
                ]
                lookup = results.median(name, "tp tp 1000 workload", "lookup")
                lines.append(
                    [
                        results.contenders[name].title,
                        *cells,
                        f"{1e9 / lookup:,.0f}" if lookup else "",
                    ]
                )
    words = (
        "A row whose name is in quotation marks has the figures printed in the article (Go, a 2.6 "
        "GHz Core i7). The rows below it have the equivalent contenders of our run. Times are in "
        "nanoseconds: cold (in an empty matcher) and hot (with 1,000 subscriptions). The last "
        "column has the lookups per second in the part `tp` with 1,000 patterns. The article "
        "subscribes the same pattern again and again; here each pattern is new."
    )
    return f"{words}\n\n" + rows(
        [
            "ns",
            "cold subscribe",
            "cold unsubscribe",
            "cold lookup",
            "hot subscribe",
            "hot unsubscribe",
            "hot lookup",
            "lookups per second",
        ],
        lines,
    )


def _article_all(results: MatchingResults) -> str:
    cold, hot = _keys(results, "article", "cold")[0], _keys(results, "article", "workload")[0]
    memory = _keys(results, "article", "memory")
    header = [
        "ns",
        "cold subscribe",
        "cold unsubscribe",
        "cold lookup",
        "hot subscribe",
        "hot unsubscribe",
        "hot lookup",
        "bytes per subscription",
    ]
    lines = []
    for name, about in results.contenders.items():
        cells = [
            _cell(results, name, key, which)
            for key in (cold, hot)
            for which in ("subscribe", "unsubscribe", "lookup")
        ]
        cells.append(_cell(results, name, memory[0], "octets") if memory else "")
        if any(cells):
            lines.append([about.title if about.ours else f"*{about.title}*", *cells])
    return rows(header, lines)


def _one_filter(results: MatchingResults) -> Iterator[str]:
    keys, memory = _keys(results, "one-filter", "workload"), _keys(results, "one-filter", "memory")
    if not keys:
        return
    count = results.cases[keys[0]].size
    yield f"### {count:,} subscribers on one pattern"
    yield (
        f"The table shows times in nanoseconds: of one lookup, which finds all {count:,} "
        "subscribers; of the subscription and unsubscription of one more subscriber; and of each "
        "subscription while an empty matcher gets all subscribers."
    )
    lines = []
    for name, about in results.contenders.items():
        cells = [
            _cell(results, name, keys[0], which)
            for which in ("lookup", "subscribe", "unsubscribe", "load")
        ]
        cells += [_cell(results, name, key, "octets") for key in memory]
        if any(cells):
            lines.append([about.title if about.ours else f"*{about.title}*", *cells])
    yield rows(
        [
            "",
            "ns per lookup",
            "ns per subscription",
            "ns per unsubscription",
            "ns per subscription while loading",
            "bytes per subscriber",
        ][: 5 + len(memory)],
        lines,
    )


def _claims(results: MatchingResults) -> Iterator[str]:
    """Yield a Markdown section with a table: claims of published articles, and our results.

    The articles are numbered as in matching/__init__.py.
    """

    def lookup(name: str, workload: str, count: int) -> float | None:
        return results.median(name, f"{workload} {workload} {count} workload", "lookup")

    def over(above: float | None, below: float | None) -> str:
        return f"{figure(above / below)} ×" if above and below else "not measured"

    def memory_of(name: str, key: str) -> float | None:
        return results.median(name, key, "octets")

    split = "splitting tp 1000 splitting"
    each, once = (results.median("naive", split, which) for which in ("each", "once"))
    at_10k = lookup("bitmap", "tp", 10_000)
    hot = "article seed 1000 memory"
    lines = [
        [
            "1",
            "the inverted bitmap takes 4.5 × the memory of the optimized bitmap",
            over(memory_of("bitmap-fixed", hot), memory_of("bitmap", hot))
            + " (the article's 1,000 subscriptions, before the first lookup)",
        ],
        [
            "3",
            "the bitmap is 3 × as fast as the scan, at 1,000 subscriptions",
            over(lookup("naive", "tp", 1_000), lookup("bitmap", "tp", 1_000)) + " as fast",
        ],
        [
            "4",
            "10 µs per message with 10,000 patterns",
            f"{at_10k / 1e3:.1f} µs (`bitmap`, tp 10k)" if at_10k else "not measured",
        ],
        [
            "4",
            "testing for any match is cheaper than a lookup",
            over(
                lookup("bitmap", "iot", 10_000),
                results.median("bitmap", "iot iot 10000 workload", "any"),
            )
            + " as fast as a lookup (`bitmap`, iot 10k)",
        ],
        ["5", "splitting keys once makes the scan 3 × as fast", over(each, once) + " as fast"],
        [
            "5",
            "indexes by word are the slowest",
            over(lookup("word-sets", "iot", 1_000), lookup("trie", "iot", 1_000))
            + " the time of the trie (`word-sets`, iot 1k)",
        ],
        [
            "5",
            "a DFA needs no backtracking, but more memory than the trie",
            over(lookup("trie", "iot", 10_000), lookup("dfa", "iot", 10_000))
            + " as fast, "
            + over(
                memory_of("dfa", "iot iot 10000 memory"), memory_of("trie", "iot iot 10000 memory")
            )
            + " the memory before the first lookup (iot 10k)",
        ],
    ]
    yield "### Claims of the articles\n\n" + rows(
        ["article", "claim", "measured here"], lines, "---"
    )


def _contenders(results: MatchingResults) -> str:
    lines = [
        [
            f"`{name}`",
            about.title,
            about.idea,
            about.origin,
            f"not measured: {about.missing}" if about.missing else about.version,
        ]
        for name, about in results.contenders.items()
    ]
    return rows(["name", "title in the tables", "idea", "origin", "version"], lines, "---")
