"""Tests of `trellis ask`.

Its answers must equal the answers of a broker that routes the messages one by one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import parquet

from broker.definitions.rabbitmq import import_
from pyspark_trellis.arrow_feed import SUMS, JournalFeed
from pyspark_trellis.commands import wait_for_message
from pyspark_trellis.counts import KEYS
from tests.clients import World
from tests.pipeline.traffic import (
    SPECIAL,
    Document,
    definitions,
    event_time,
    numbered,
    snapshot,
    subscriptions,
    topics,
)
from tests.pipeline.traffic import rows as some_rows
from tests.pipeline.written import START, Row, Writer, journal, row
from trellis.auth.passwords import check_hash
from trellis.cli import main, parser

#: The error of a command without pyarrow, for the name of the command and its extra.
NEEDS_PYARROW: Final = (
    "trellis: `trellis {}` needs pyarrow, which is not installed here: "
    "pip install 'trellis-broker[{}]'\n"
)
#: The exchanges to which messages are published.
EXCHANGES: Final = ("t", "u", "d", "f", "", "amq.topic")


class RealBroker:
    """A broker in memory with these definitions, to which messages are published one by one."""

    def __init__(self, document: Document) -> None:
        self.world = World()
        assert import_(self.world.broker, document, check_hash).refused == []
        self._client = self.world.amqp()

    def reached(self, exchange: str, topic: str) -> set[str]:
        """Publish a message; return the names of the queues that it reaches."""
        queues = self.world.vhost.queues
        before = {name: queue.depth for name, queue in queues.items()}
        self._client.publish(exchange, topic, b"m")
        return {name for name, queue in queues.items() if queue.depth > before[name]}


def by_topic_alone(document: Document) -> Document:
    """Return definitions without the headers exchange `h`, its bindings and references to it.

    A headers exchange routes by more than the topic.
    """
    return document | {
        "exchanges": [
            each
            for each in document["exchanges"]
            if each["name"] != "h" and each["arguments"].get("alternate-exchange") != "h"
        ]
        + [
            each | {"arguments": {}}
            for each in document["exchanges"]
            if each["arguments"].get("alternate-exchange") == "h"
            if each["name"] != "h"
        ],
        "bindings": [
            each
            for each in document["bindings"]
            if "h" not in (each["source"], each["destination"])
        ],
    }


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Run `trellis ask WORDS --json -`, check the exit code, and return the decoded answer."""
    capsys.readouterr()
    assert main(["ask", *words, "--json", "-"]) == code
    decoded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return decoded


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_a_broker_that_routes_each_message(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    old, new = (by_topic_alone(definitions(rng, count)) for count in (20, 8))
    brokers = [RealBroker(document) for document in (old, new)]
    pool = [*topics(rng, 30), *SPECIAL]
    messages: list[Row] = []
    before, after = (Counter[str](), Counter[str]())
    lost, unroutable = (Counter[tuple[str, str]](), Counter[tuple[str, str]]())
    for offset in range(150):
        exchange, topic = rng.choice(EXCHANGES), rng.choice(pool)
        now, then = (broker.reached(exchange, topic) for broker in brokers)
        messages.append(row(offset, topic, exchange=exchange, routed=len(now)))
        before.update(now)
        after.update(then)
        lost[exchange, topic] += bool(now and not then)
        unroutable[exchange, topic] += not now
    journal(tmp_path / "journal", messages, 40, 70)
    for name, document in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    history = ("--journal", str(tmp_path / "journal"))
    files = ("--definitions", str(tmp_path / "new.json"), "--current", str(tmp_path / "old.json"))

    reply = answer(capsys, "whatif", *history, *files, code=1)
    queues = {each["name"] for each in old["queues"]}
    assert {each["name"]: each["before"] for each in reply["queues"]} == {
        name: before[name] for name in queues
    }
    assert {each["name"]: each["after"] for each in reply["queues"]} == {
        name: after[name] for name in queues
    }
    assert counts(reply["lost"], "messages") == +lost
    # Without --current, the journal shows which messages reached a queue.
    assert answer(capsys, "whatif", *history, *files[:2], code=1)["lost"] == reply["lost"]
    reply = answer(capsys, "audit", *history, "--definitions", files[3])
    assert counts(reply["unroutable"], "messages") == +unroutable
    reply = answer(capsys, "unroutable", *history, "--definitions", files[3])
    assert counts(reply["rows"], "unroutable") == +unroutable
    assert {each["now"] for each in reply["rows"]} == {"nowhere"}
    assert reply["unroutable"] == unroutable.total()
    reply = answer(capsys, "unroutable", *history, "--definitions", files[1])
    for each in reply["rows"]:
        reached = brokers[1].reached(each["exchange"], each["topic"])
        assert each["now"] == ("queue" if reached else "nowhere")


def counts(rows: list[dict[str, Any]], name: str) -> Counter[tuple[str, str]]:
    return Counter({(each["exchange"], each["topic"]): each[name] for each in rows})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a journal and the stream $topology beside it."""
    path = tmp_path_factory.mktemp("ask")
    rng = random.Random(3)
    document, heard = definitions(rng, 25), subscriptions(rng, 8)
    journal(path / "journal", some_rows(rng, 200, document, heard=heard), 50, 100)
    journal(path / "%24topology", numbered(snapshot(document, heard, START)))
    (path / "old.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("by", ["topic", "exchange", "vhost", "minute", "hour", "day"])
def test_traffic_counts_each_message_once(
    by: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    document, heard = definitions(rng, 25), subscriptions(rng, 8)
    expected: dict[tuple[str, ...], list[int]] = {}
    formats = {"minute": "%F %T+00:00", "hour": "%F %H:00:00+00:00", "day": "%F 00:00:00+00:00"}
    for each in some_rows(rng, 200, document, heard=heard):
        names = {"topic": ("vhost", "exchange", "topic"), "exchange": ("vhost", "exchange")}
        if by in formats:
            key = (event_time(each).replace(second=0, microsecond=0).strftime(formats[by]),)
        else:
            key = tuple(each[name] for name in names.get(by, ("vhost",)))
        sums = expected.setdefault(key, [0] * 4)
        for at, more in enumerate((1, each["size"], each["routed"], each["routed"] == 0)):
            sums[at] += more
    traffic = answer(capsys, "traffic", "--journal", str(place / "journal"), "--by", by)
    assert {tuple(each.values())[:-4]: list(each.values())[-4:] for each in traffic["rows"]} == (
        expected
    )
    assert traffic["span"][:2] == [200, len({(e["exchange"], e["topic"]) for e in some(place)})]


def some(place: Path) -> list[Row]:
    rng = random.Random(3)
    document, heard = definitions(rng, 25), subscriptions(rng, 8)
    return some_rows(rng, 200, document, heard=heard)


def test_the_counts_of_the_pipeline_are_read_without_spark(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the counts have only the files that the log of Spark's file sink names.

    Entries 0 and 1 of the log are compacted into one file. A file of a killed task is not in the
    log.
    """
    target = tmp_path / "traffic"
    (target / "_spark_metadata").mkdir(parents=True)
    feed = JournalFeed({"path": str(place / "journal")}, ("minute", *KEYS))
    sums = feed.sums().select(SUMS.names)
    for number in range(4):
        # Spark writes timestamps in the format INT96.
        part = sums.slice(30 * number, 30 if number < 3 else None)
        parquet.write_table(
            part, target / f"part-{number}.parquet", use_deprecated_int96_timestamps=True
        )
    parquet.write_table(sums, target / "part-of-a-killed-task.parquet")
    log = {"0": [0], "1.compact": [0, 1], "2": [2], "3": [3]}
    for name, parts in log.items():
        lines = [
            json.dumps({"path": f"file://{target}/part-{part}.parquet", "action": "add"})
            for part in parts
        ]
        (target / "_spark_metadata" / name).write_text("\n".join(["v1", *lines]))
    (target / "_spark_metadata" / ".3.crc").touch()
    bindings = ("--definitions", str(place / "old.json"), "--topology", "none")
    for words in (("traffic", "--by", "hour"), ("traffic",), ("audit", *bindings)):
        reply = answer(capsys, *words, "--traffic", str(target))
        assert reply == answer(capsys, *words, "--journal", str(place / "journal"))


def test_only_an_exchange_that_compares_keys_has_a_nearest_binding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["direct", "fanout", "headers", "topic"]
    rows = [row(at, "ordres", exchange=kind, routed=0) for at, kind in enumerate(kinds)]
    journal(tmp_path / "journal", rows)
    document = {
        "queues": [{"name": "q"}],
        "exchanges": [{"name": kind, "type": kind} for kind in kinds],
        "bindings": [
            {
                "source": kind,
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "orders",
            }
            for kind in kinds
        ],
    }
    (tmp_path / "definitions.json").write_text(json.dumps(document))
    words = ("--definitions", str(tmp_path / "definitions.json"), "--topology", "none")
    rows = answer(capsys, "unroutable", "--journal", str(tmp_path / "journal"), *words)["rows"]
    assert {each["exchange"]: (each["nearest"], each["words"]) for each in rows} == {
        "direct": ("orders", 1),
        "fanout": (None, 0),
        "headers": (None, 0),
        "topic": ("orders", 1),
    }


def test_times_select_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that --since and --until select rows by the time at which they were published.

    The row with the number N was published N seconds after 12:00.
    """
    times = ("--since", "2026-03-01T12:00:30", "--until", "2026-03-01T12:02")
    traffic = answer(
        capsys, "traffic", "--journal", str(place / "journal"), *times, "--by", "vhost"
    )
    assert traffic["rows"][0]["messages"] == 90


def test_sessions_and_bindings_come_from_the_topology(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = ("--journal", str(place / "journal"))
    audit = answer(capsys, "audit", *history)
    assert audit["bindings"] == len(definitions(random.Random(3), 25)["bindings"]) + 8
    assert "from $topology of vhost '/' as of 2026-03-01 12:00:00 UTC" in audit["said_by"][1]
    whatif = ("whatif", *history, "--definitions", str(place / "old.json"))
    assert {each["kind"] for each in answer(capsys, *whatif)["queues"]} == {"queue", "session"}


def test_tables_and_exit_codes(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = ("--journal", str(place / "journal"))
    for words, code, text in (
        (("traffic",), 0, "copies  unroutable"),
        (("unroutable",), 0, "topics reached no queue"),
        (("unroutable", "--check"), 1, "topics reached no queue"),
        (("audit",), 0, "dead: no published topic matched"),
        (("audit", "--check"), 1, "dead: no published topic matched"),
        (("advise", "--output", str(tmp_path / "p.json")), 0, "route cache: 1,024 entries"),
    ):
        assert main(["ask", *words, *history]) == code, words
        captured = capsys.readouterr()
        assert captured.err == ""
        assert captured.out.startswith("200 messages of 106 topics, 2026-03-01 12:00:01 to ")
        assert text in captured.out
    assert json.loads((tmp_path / "p.json").read_text())["messages"] == 200
    # Without unroutable messages, --check succeeds.
    Writer(tmp_path / "all").write([row(0, "a")])
    assert main(["ask", "unroutable", "--check", "--journal", str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out.endswith("every message reached a queue\n")


def test_an_empty_journal_has_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Writer(tmp_path / "journal").write([row(0, "a")])
    (tmp_path / "d.json").write_text("{}")
    for words in (
        ("traffic",),
        ("unroutable",),
        ("audit", "--definitions", str(tmp_path / "d.json")),
    ):
        words = (*words, "--journal", str(tmp_path / "journal"), "--starting", "latest")
        assert answer(capsys, *words)["span"] == [0, 0, None, None]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["traffic", "--journal", "{place}/none"], "cannot read the journal {place}/none: No such"),
        (["traffic", "--journal", "{place}"], "name the directory of one stream"),
        (
            ["audit", "--journal", "{place}/journal", "--topology", "none"],
            "the bindings are unknown (--topology is none): set --definitions FILE or --topology",
        ),
        (
            ["traffic", "--journal", "{place}/journal", "--traffic", "x"],
            "exactly one source of messages is required: set either --journal or --traffic",
        ),
        (
            ["traffic", "--traffic", "{place}/journal"],
            "cannot read the list of its files in {place}/journal/_spark_metadata (No",
        ),
        (["traffic", "--traffic", "x", "--since", "1h"], "--since and --until cannot be"),
        (
            ["traffic", "--journal", "{place}/journal", "--starting", "4711"],
            "startingOffsets=4711 is after the end of",
        ),
        (
            ["traffic", "--journal", "{place}/journal", "--pattern", "a.b", "--since", "soon"],
            "'soon' is not a time: give an age such as 15m",
        ),
        (
            ["traffic", "--traffic", "x", "--pattern", "a.#"],
            "--pattern cannot be combined with --traffic, because it selects rows of a journal",
        ),
        (
            ["audit", "--traffic", "x", "--starting", "5"],
            "--starting cannot be combined with --traffic, because it selects rows of a journal",
        ),
        (
            ["traffic", "--journal", "{place}/journal", "--starting", "20", "--ending", "10"],
            "--ending 10 is before --starting 20: exchange the two offsets",
        ),
        (
            ["traffic", "--journal", "{place}/journal", "--since", "1d", "--until", "2d"],
            "--until is a time before --since: exchange the two times",
        ),
        (["traffic", "--by", "queue"], 'unknown value "queue"; the nearest is '),
        (["whatif", "--journal", "{place}/journal"], "are required: --definitions"),
        (["lost"], 'unknown action "lost"; the nearest is '),
        ([], "`trellis ask` needs a question: traffic, unroutable, whatif, audit or advise"),
    ],
)
def test_an_error_is_one_line(
    words: list[str], line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", *(word.format(place=place) for word in words)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert line.format(place=place) in captured.err


def test_a_broker_that_does_not_answer_is_a_failure_and_no_wrong_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["ask", "traffic", "--journal", "http://127.0.0.1:1", "--stream", "s"]
    assert main(words) == 1
    assert capsys.readouterr().err == (
        "trellis: http://127.0.0.1:1 does not answer: [Errno 111] Connection refused; "
        "check that a broker runs there, with the listener `http`\n"
    )


def test_a_question_does_not_need_pyspark(place: Path) -> None:
    """`trellis ask` answers without pyspark, py4j, matplotlib and pika.

    Without pyarrow, the error of the command says what to install.
    """
    script = (
        "import sys; from trellis.cli import main; "
        "sys.modules.update(dict.fromkeys(sys.argv[1].split(','))); sys.exit(main(sys.argv[2:]))"
    )
    ask = ["ask", "audit", "--journal", str(place / "journal"), "--json", "-"]
    asyncapi = ["asyncapi", "--journal", "none", "--definitions", os.devnull]
    for words, without, code, error in (
        (ask, "pyspark,py4j,matplotlib,pika", 0, ""),
        (ask, "pyarrow", 2, NEEDS_PYARROW.format("ask", "arrow")),
        (asyncapi, "pyarrow", 2, NEEDS_PYARROW.format("asyncapi", "asyncapi")),
    ):
        ran = subprocess.run(
            [sys.executable, "-c", script, without, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (code, error)
        assert (code == 0) == bool(ran.stdout)


def test_a_question_is_answered_again_after_new_messages(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --follow, each answer counts all messages so far.

    Ctrl-C ends the command with exit code 0.
    """
    messages = some(place)
    writer = Writer(tmp_path / "journal")
    writer.write(messages[:50])
    ahead = [messages[50:120], messages[120:]]

    def sleep(seconds: float) -> None:
        if not ahead:
            raise KeyboardInterrupt
        writer.write(ahead.pop(0))

    monkeypatch.setattr("pyspark_trellis.answering.time.sleep", sleep)
    words = ["traffic", "--journal", str(tmp_path / "journal"), "--by", "vhost", "--json", "-"]
    assert main(["ask", *words, "--follow"]) == 0
    captured = capsys.readouterr()
    answers = [json.loads(line) for line in captured.out.splitlines()]
    assert [each["rows"][0]["messages"] for each in answers] == [50, 120, 200]
    assert captured.err == "stopped\n"


def test_a_job_waits_for_the_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sleep(seconds: float) -> None:
        next(steps)()

    steps: Iterator[Callable[[], object]] = iter(
        [
            lambda: None,
            lambda: Writer(tmp_path / "j"),
            lambda: journal(tmp_path / "j", [row(0, "a")]),
        ]
    )
    monkeypatch.setattr("pyspark_trellis.commands.time.sleep", sleep)
    words = ["pipeline", "traffic", "--journal", str(tmp_path / "j"), "--target", "t", "--wait"]
    wait_for_message(parser().parse(words))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{tmp_path}/j: ")[2][:23] for line in lines] == [
        "cannot read the journal",
        "the journal has no message yet"[:23],
    ]
