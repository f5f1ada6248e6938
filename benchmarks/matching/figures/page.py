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

_FURTHER = {
    "subscribe": "to subscribe",
    "unsubscribe": "to unsubscribe",
    "any": "to find out if any subscriber matches",
    "first": "for the first lookup of each topic",
    "load": "per subscription while loading all",
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
                "The table shows nanoseconds per lookup, after a first lookup of each topic, for "
                "each number of patterns.\n\n"
                f"{_by_size(results, keys, 'lookup')}"
            )
            yield (
                "The table shows the bytes of memory per subscription.\n\n"
                f"{_by_size(results, _keys(results, workload, 'memory'), 'octets')}"
            )
            yield "<details><summary>Subscribing, first lookups, testing for any match</summary>"
            for name, words in _FURTHER.items():
                yield f"The table shows nanoseconds {words}.\n\n{_by_size(results, keys, name)}"
            yield "</details>"
    if _keys(results, "article", "cold"):
        yield "### Article 1"
        yield _picture(pictures, "article")
        yield _article(results)
        yield (
            "The table has all contenders in the test of article 1: nanoseconds cold and hot, and "
            f"bytes per subscription.\n\n{_article_all(results)}"
        )
    yield _picture(pictures, "memory")
    threads = [key for key, case in results.cases.items() if case.part == "threads"]
    if threads:
        yield "### Threads: articles 1 and 2"
        yield (
            "The table shows the milliseconds of wall-clock time until all workers have done 1,000 "
            "operations each:\n\n"
            "- `50/50 N`: of N workers, half subscribe and half look up;\n"
            "- `90/10 N`: of ten operations of each worker, one subscribes and nine look up;\n"
            "- `1:1 N`: N workers subscribe, N look up;\n"
            "- `1:3 N`: N workers subscribe, 3 N look up."
        )
        for name in ("threads-50", "threads-90", "threads-1-1", "threads-1-3"):
            yield _picture(pictures, name)
        yield _variants(results, threads, "ms")
    churn = [key for key, case in results.cases.items() if case.part == "churn"]
    if churn:
        yield "### Cached answers while subscriptions change"
        yield _picture(pictures, "churn")
        yield (
            "The tables show nanoseconds per publication, including its share of the time of the "
            "changes."
        )
        for workload in dict.fromkeys(results.cases[key].workload for key in churn):
            keys = [key for key in churn if results.cases[key].workload == workload]
            yield (
                f"`{workload}`: "
                f"{results.cases[keys[0]].text}\n\n{_variants(results, keys, 'publish')}"
            )
    attack = _keys(results, "attack", "workload")
    if attack:
        yield "### Patterns made to be slow"
        yield _picture(pictures, "attack")
        yield "\n".join(
            f"- `{results.cases[key].workload}`: {results.cases[key].text}" for key in attack
        )
        yield (
            "The table shows nanoseconds per lookup. Each of the first four attacks has only one "
            "topic, whose lookup is timed alone; this adds about 400 ns.\n\n"
            + _table(results, {results.cases[key].workload: key for key in attack}, "lookup")
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


def _table(results: MatchingResults, columns: Mapping[str, str], which: str) -> str:
    lines = []
    for name, about in results.contenders.items():
        cells = [_cell(results, name, key, which) for key in columns.values()]
        if any(cells):
            lines.append([about.title if about.ours else f"*{about.title}*", *cells])
    return rows(["", *columns], lines)


def _by_size(results: MatchingResults, keys: Sequence[str], which: str) -> str:
    return _table(results, {size(results.cases[key].size): key for key in keys}, which)


def _variants(results: MatchingResults, keys: Sequence[str], which: str) -> str:
    return _table(results, {results.cases[key].variant: key for key in keys}, which)


def _targets(results: MatchingResults) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    return (
        "A target compares an algorithm with the library named after ×. Most targets are a ratio "
        "of lookup times; the other targets name their figure.\n\n"
    ) + rows(
        ["target", "bound", "measured", "met"],
        [[each.what, each.bound, each.found, words[each.met]] for each in targets(results)],
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
        "Lines in quotation marks have the figures printed in the article (Go, a 2.6 GHz Core i7). "
        "The lines below each have the equivalent contenders here. Figures are nanoseconds, first "
        "cold (in an empty matcher), then hot (with 1,000 subscriptions). The last column has the "
        "matches per second on `tp` with 1,000 patterns. The article subscribes the same pattern "
        "again and again; here each pattern is new."
    )
    return f"{words}\n\n" + rows(
        [
            "",
            "subscribe",
            "unsubscribe",
            "lookup",
            "hot subscribe",
            "unsubscribe",
            "lookup",
            "matches/s",
        ],
        lines,
    )


def _article_all(results: MatchingResults) -> str:
    cold, hot = _keys(results, "article", "cold")[0], _keys(results, "article", "workload")[0]
    memory = _keys(results, "article", "memory")
    header = [
        "",
        "subscribe",
        "unsubscribe",
        "lookup",
        "hot subscribe",
        "unsubscribe",
        "lookup",
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
        f"Nanoseconds for one lookup, which finds all {count:,} subscribers; nanoseconds to "
        "subscribe or unsubscribe one more subscriber; and nanoseconds per subscription while "
        "loading all."
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
            f"lookup of all {count:,}, ns",
            "subscribe",
            "unsubscribe",
            "load, each",
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
            "the optimized bitmap takes 4.5 × less memory than the inverted one",
            over(memory_of("bitmap-fixed", hot), memory_of("bitmap", hot))
            + " (the article's 1,000 subscriptions, one topic known)",
        ],
        [
            "3",
            "the bitmap is 3 × as fast as the scan, at 1,000 subscriptions",
            over(lookup("naive", "tp", 1_000), lookup("bitmap", "tp", 1_000)),
        ],
        [
            "4",
            "10 µs per message at 10,000 requests",
            f"{at_10k / 1e3:.1f} µs (`bitmap`, tp)" if at_10k else "not measured",
        ],
        [
            "4",
            "testing for any match is cheaper than a lookup",
            over(
                lookup("bitmap", "iot", 10_000),
                results.median("bitmap", "iot iot 10000 workload", "any"),
            )
            + " (`bitmap`, iot 10k)",
        ],
        ["5", "splitting keys once makes the scan 3 × as fast", over(each, once)],
        [
            "5",
            "indexes by word are the slowest",
            over(lookup("word-sets", "iot", 1_000), lookup("trie", "iot", 1_000))
            + " the trie (`word-sets`, iot 1k)",
        ],
        [
            "5",
            "a DFA needs no backtracking and more memory than the trie",
            over(lookup("trie", "iot", 10_000), lookup("dfa", "iot", 10_000))
            + " as fast, "
            + over(
                memory_of("dfa", "iot iot 10000 memory"), memory_of("trie", "iot iot 10000 memory")
            )
            + " the memory before the first lookup (iot 10k)",
        ],
    ]
    yield "### What the articles claim\n\n" + rows(["article", "says", "here"], lines, "---")


def _contenders(results: MatchingResults) -> str:
    lines = [
        [
            f"`{name}`",
            about.title,
            about.idea,
            about.origin,
            f"not here: {about.missing}" if about.missing else about.version,
        ]
        for name, about in results.contenders.items()
    ]
    return rows(["name", "title", "what", "from", "version"], lines, "---")
