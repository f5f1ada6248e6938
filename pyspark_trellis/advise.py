"""`trellis ask advise` and `trellis pipeline advise`: measures the matchers on real topics and
bindings, and writes `matching-profile.json` for the broker.

    {"format": 1, "made_at": ..., "messages": ..., "routes": entries of the route cache,
     "exchanges": [{"vhost", "exchange", "matcher", "prewarm": [topics], "bindings", "topics",
                    "measured": {matcher: ns per lookup}}]}

The broker reads the file at its start and on SIGHUP (setting `matcher.profile`). The profile names
a matcher only if it was clearly faster than `auto` (BETTER). The topics to prewarm are the topics
with the most messages; after a start, their first messages need not wait for a lookup.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from matching.composite import Bilingual
from matching.grammar import AMQP
from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.files import write
from pyspark_trellis.grammars import GRAMMARS
from pyspark_trellis.topics import PublishedTopics

#: The matchers to measure: all matchers that a broker allows by default.
MATCHERS: Final = ("auto", "trie", "shapes", "bitmap")
#: A matcher is recommended if its time per lookup is at most this fraction of the time of `auto`.
BETTER: Final = 0.9
#: The maximum number of topics per exchange with which matchers are measured. The topics with the
#: most messages are chosen.
SAMPLE: Final = 20_000
#: The number of rounds of a measurement. A round looks up a part of the topics: of PARTS parts with
#: topics of all frequencies, or of fewer parts, so that a part has at least PART_TOPICS topics.
ROUNDS: Final = 10
PARTS: Final = 5
PART_TOPICS: Final = 2_000
#: The share of the messages (0 to 1) whose topics are prewarmed.
CARRIED: Final = 0.9
#: The maximum number of prewarmed topics per exchange.
PREWARMED: Final = 5_000
#: The smallest and the largest recommended size of the route cache, in routes.
LEAST_ROUTES, MOST_ROUTES = 1_024, 4_194_304


@dataclass(frozen=True)
class ExchangeAdvice:
    """Recommended settings of a topic exchange: its matcher, and the topics to prewarm.

    `matcher` is None if no matcher is clearly faster than `auto`. `measured` is the time per lookup
    of each matcher, in nanoseconds.
    """

    vhost: str
    exchange: str
    bindings: int
    topics: int
    messages: int
    matcher: str | None
    prewarm: list[str]
    measured: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Advice:
    """Recommended settings of a broker, which the command writes as the profile file.

    `exchanges` has a matcher and topics to prewarm for each exchange. `routes` is the number of
    routes to cache.

    `span` has the number of messages in the history and the time of its first and last message.
    `carried` is the share (0 to 1) of these messages whose topic is prewarmed.
    """

    span: Span
    routes: int
    carried: float
    exchanges: list[ExchangeAdvice]

    def profile(self, now: datetime) -> dict[str, Any]:
        """Return the contents of the profile file; `now` is its time of creation (`made_at`)."""
        return {
            "format": 1,
            "made_at": now.astimezone(UTC).isoformat(timespec="seconds"),
            "messages": self.span.messages,
            "routes": self.routes,
            "exchanges": [asdict(each) for each in self.exchanges],
        }

    def write(self, path: Path) -> None:
        """Write the profile atomically: a broker may read the file at any time.

        Raises PipelineError.
        """
        write(
            path, json.dumps(self.profile(datetime.now(UTC)), ensure_ascii=False, indent=1) + "\n"
        )


def advise(
    published: PublishedTopics,
    definitions: DefinitionsFile,
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[[], int] = time.thread_time_ns,
) -> Advice:
    """Measure the matchers, and return the advice for these published topics and definitions.

    `clock` returns nanoseconds. By default, these are CPU time of this thread, which other programs
    hardly change. Raises PipelineError for an invalid binding key.
    """
    span = published.span()
    busiest = published.busiest(SAMPLE)
    counts = busiest.counts
    advices: list[ExchangeAdvice] = []
    carried = 0
    for vhost, host in sorted(definitions.hosts.items()):
        for exchange in sorted(name for name, kind in host.types.items() if kind == "topic"):
            topics, messages = counts.get((vhost, exchange), (0, 0))
            if not topics:
                continue
            keys = [(each.key, each.grammar) for each in host.outgoing.get(exchange, [])]
            most = busiest.top[vhost, exchange]
            progress(
                f"measuring exchange {exchange} of vhost {vhost}: "
                f"{len(keys)} bindings, {topics} topics"
            )
            prewarm = topics_to_prewarm(most, messages)
            carried += sum(count for _, count in most[: len(prewarm)])
            measured = measure(keys, [topic for topic, _ in most], clock)
            advices.append(
                ExchangeAdvice(
                    vhost,
                    exchange,
                    len(keys),
                    topics,
                    messages,
                    fastest_matcher(measured),
                    prewarm,
                    measured,
                )
            )
    routes = cache_size(sum(topics for topics, _ in counts.values()))
    return Advice(span, routes, carried / span.messages if span.messages else 0.0, advices)


def topics_to_prewarm(topics: Sequence[tuple[str, int]], messages: int) -> list[str]:
    """Return the most frequent topics that together have the share CARRIED of all messages.

    `topics` are pairs of topic and number of messages, the most frequent topic first. At most
    PREWARMED topics are returned.
    """
    chosen: list[str] = []
    had = 0
    for topic, count in topics[:PREWARMED]:
        if had >= CARRIED * messages:
            break
        chosen.append(topic)
        had += count
    return chosen


def cache_size(topics: int) -> int:
    """Return the recommended number of routes in the broker's route cache.

    The cache has room for all topics and a quarter more, rounded up to a power of two, between
    LEAST_ROUTES and MOST_ROUTES.
    """
    wanted = max(LEAST_ROUTES, topics + topics // 4)
    return min(MOST_ROUTES, 1 << (wanted - 1).bit_length())


def measure(
    keys: Sequence[tuple[str, str]],
    topics: Sequence[str],
    clock: Callable[[], int] = time.thread_time_ns,
) -> dict[str, int]:
    """Return the time per lookup of each matcher in nanoseconds: the median of ROUNDS rounds.

    In each round, all matchers look up the same topics, one matcher after another. `keys` are pairs
    of a binding key and the name of its grammar. A lookup is done as in a topic exchange. The
    result is empty if no key has a wildcard, or if there are no topics. Raises AssertionError if
    two matchers find different bindings of a topic.
    """
    matchers: dict[str, Bilingual[int]] = {}
    if not topics or not any(GRAMMARS[grammar].is_pattern(key) for key, grammar in keys):
        return {}
    for name in MATCHERS:
        try:
            matcher: Bilingual[int] = Bilingual(AMQP, name)
        except ImportError:
            continue
        for number, (key, grammar) in enumerate(keys):
            matcher.side(GRAMMARS[grammar]).subscribe(key, number)
        matchers[name] = matcher
    some = topics[:200]
    expected = [sorted(matchers["auto"].match(topic)) for topic in some]
    for name, matcher in matchers.items():
        assert [sorted(matcher.match(topic)) for topic in some] == expected, (
            f"the matchers {name} and auto found different bindings for a topic: this is a bug of "
            "Trellis, please report it"
        )
    parts = min(PARTS, len(topics) // PART_TOPICS) or 1
    times: dict[str, list[float]] = {name: [] for name in matchers}
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(ROUNDS):
            part = topics[turn % parts :: parts]
            for name, matcher in matchers.items():
                match = matcher.match
                begin = clock()
                for topic in part:
                    match(topic)
                times[name].append((clock() - begin) / len(part))
    finally:
        if enabled:
            gc.enable()
    return {name: round(median(rounds)) for name, rounds in times.items()}


def fastest_matcher(measured: dict[str, int]) -> str | None:
    """Return the fastest matcher if it is clearly faster than `auto` (BETTER), otherwise None."""
    if "auto" not in measured:
        return None
    name = min(measured, key=lambda each: measured[each])
    return name if measured[name] <= BETTER * measured["auto"] else None
