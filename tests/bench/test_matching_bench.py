"""Tests of `trellis bench matching` and `trellis matchers`.

The output must be correct, and distinguish wrong matchers from slow matchers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matching import AMQP, NAMES, create
from trellis.bench.matching.answers import MatchAnswers, WrongMatch, answers, check
from trellis.bench.matching.cases import PARTS, batches
from trellis.bench.matching.churn import churn
from trellis.bench.matching.concurrency import LockedMatcher, threads
from trellis.bench.matching.contenders import (
    Contender,
    ContenderFailed,
    RunningContender,
    Slow,
    ours,
    peers,
)
from trellis.bench.matching.measure import cold, first_pass, pairs, per_call, workload
from trellis.bench.matching.results import ResultCell, merged, read
from trellis.bench.matching.splitting import splitting
from trellis.bench.matching.workloads import ATTACKS, GROWING, ONE_FILTER, THREADS, ZIPF
from trellis.cli import main

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

#: The program of a matcher of another project; its argument names its behaviour.
PEER = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["kind"] == "about":
        answer = {"version": "1"}
    elif sys.argv[1] == "wrong":
        answer = {"wrong": "2 topics found nothing"}
    elif sys.argv[1] == "unable":
        answer = {"unable": "no grammar"}
    elif sys.argv[1] == "ends":
        sys.exit("it broke")
    elif sys.argv[1] == "babbles":
        print("hello", flush=True)
        continue
    elif sys.argv[1] == "sleeps":
        time.sleep(600)
    else:
        answer = {"lookup": 1.0, "octets": 2.0}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a peers.toml, which lists the matchers of other projects.

    Here these matchers are scripts, each named after its behaviour, such as `wrong` or `sleeps`.
    """
    (tmp_path / "peer.py").write_text(PEER)
    entries = [
        f'[[peer]]\nname = "{name}"\ntitle = "{name}"\nmissing = ""\n'
        f'command = ["{sys.executable}", "peer.py", "{name}"]\n'
        for name in ("right", "wrong", "unable", "ends", "babbles", "sleeps")
    ]
    entries.append(
        '[[peer]]\nname = "absent"\ntitle = "absent"\ncommand = ["not-there"]\n'
        'missing = "install it"\n'
    )
    (tmp_path / "peers.toml").write_text("\n".join(entries))
    return tmp_path


def peer(folder: Path, name: str) -> Contender:
    return next(each for each in peers(folder) if each.name == name)


def filled(patterns: list[str]) -> Any:
    matcher: Any = create("trie", AMQP)
    for number, pattern in enumerate(patterns):
        matcher.subscribe(pattern, number)
    return matcher


class Forgetful:
    """A matcher that is wrong on purpose: it ignores every second subscription."""

    def __init__(self) -> None:
        self._matcher: Any = create("trie", AMQP)
        self._calls = 0

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        self._calls += 1
        return self._calls % 2 == 0 or bool(self._matcher.subscribe(pattern, subscriber))

    def unsubscribe(self, pattern: str, subscriber: int) -> bool:
        return bool(self._matcher.unsubscribe(pattern, subscriber))

    def match(self, topic: str) -> list[int]:
        subscribers: list[int] = self._matcher.match(topic)
        return subscribers

    def matches_any(self, topic: str) -> bool:
        return bool(self._matcher.matches_any(topic))


@pytest.mark.parametrize("each", [*GROWING, *ZIPF, THREADS], ids=lambda each: each.name)
def test_words_are_repeatable_and_as_many_as_requested(each: Any) -> None:
    words = each.words(300)
    assert words == each.words(300)
    assert len(words.patterns) == 300 and len(words.further) >= 1_000 and words.topics
    for pattern in (*words.patterns, *words.further):
        AMQP.check(pattern)
    assert not any(AMQP.is_pattern(topic) for topic in words.topics)


@pytest.mark.parametrize("each", [*ATTACKS, ONE_FILTER], ids=lambda each: each.name)
def test_workloads_of_one_size_have_that_many_valid_patterns(each: Any) -> None:
    words = each.words(each.size)
    assert len(words.patterns) == each.size
    for pattern in (*words.patterns, *words.further):
        AMQP.check(pattern)


def test_a_digest_ignores_order_but_shows_missing_and_repeated_subscribers() -> None:
    digest = answers(lambda _: [1, 2, 3], ["a", "b"])
    assert digest == answers(lambda _: [3, 1, 2], ["a", "b"]) and digest[:2] == (2, 6)
    for other in ([1, 2], [1, 2, 3, 3], [1, 2, 4]):
        assert answers(lambda _, other=other: other, ["a", "b"]) != digest  # type: ignore[misc]


def test_answers_are_compared_topic_count_by_topic_count() -> None:
    match = filled(["a.*", "#"]).match
    expected = [answers(match, ["a.b"]), answers(match, ["a.b", "c"])]
    check(match, ["a.b", "c"], expected)
    with pytest.raises(
        WrongMatch, match=r"found 3 subscribers for 2 topics \(digest \w+\), but 9 are expected "
    ):
        check(match, ["a.b", "c"], [expected[0], MatchAnswers(2, 9, 7)])


def test_a_call_takes_time_and_the_first_pass_has_every_topic_once() -> None:
    seen: list[str] = []
    done, first = first_pass(seen.append, [str(number) for number in range(500)], 60)
    assert done == 500 and seen == [str(number) for number in range(500)] and first > 0
    assert first_pass(seen.append, ["a", "b", "c"], 0)[0] == 1
    assert per_call(len, ["abc"], 0.001) > 0


def test_measuring_subscriptions_leaves_the_matcher_unchanged() -> None:
    matcher = filled(["a.#"])
    together, back = pairs(matcher, ["a.b", "a.c"], 1, 0.001)
    assert together > 0 and back > 0 and list(matcher.subscriptions()) == [("a.#", 0)]


def test_a_missing_subscriber_makes_a_workload_wrong() -> None:
    words = GROWING[0].words(50)
    expected = [answers(filled(words.patterns).match, words.topics[:20])]
    figures = workload(
        create("bitmap", AMQP), words.patterns, words.topics, words.further, expected, 0.001
    )
    assert (
        set(figures) == {"lookup", "first", "any", "subscribe", "unsubscribe", "load"}
        and min(figures.values()) > 0
    )
    with pytest.raises(WrongMatch):
        workload(Forgetful(), words.patterns, words.topics, words.further, expected, 0.001)


def test_a_cold_start_is_measured_on_empty_matchers() -> None:
    figures = cold(lambda: create("trie", AMQP), "a.*", "a.b", 0.001)
    assert set(figures) == {"subscribe", "unsubscribe", "lookup"} and min(figures.values()) > 0
    with pytest.raises(WrongMatch):
        cold(lambda: create("trie", AMQP), "a.*", "b.b", 0.001)


def test_publications_are_measured_with_and_without_changes() -> None:
    words = ZIPF[0].words(100)
    expected = [answers(filled(words.patterns).match, words.topics[:20])]
    for every in (0, 10):
        figures = churn(
            create("trie", AMQP),
            words.patterns,
            words.topics,
            words.further,
            expected,
            every,
            0.001,
        )
        assert figures["publish"] > 0
    with pytest.raises(WrongMatch):
        churn(Forgetful(), words.patterns, words.topics, words.further, expected, 10, 0.001)


@pytest.mark.parametrize(("readers", "writers", "mixed"), [(2, 1, 0), (0, 0, 2)])
def test_a_subscription_lost_between_threads_is_an_error(
    readers: int, writers: int, mixed: int
) -> None:
    words = THREADS.words(20)
    matcher = LockedMatcher(create("trie", AMQP))
    assert (
        threads(matcher, words.patterns, words.topics, words.further, readers, writers, mixed)["ms"]
        > 0
    )
    with pytest.raises(WrongMatch, match="does not return exactly"):
        threads(
            LockedMatcher(Forgetful()),
            words.patterns,
            words.topics,
            words.further,
            readers,
            writers,
            mixed,
        )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_is_that_of_the_matchers() -> None:
    """Check that the benchmark measures a plausible number of bytes for each subscription.

    The benchmark measures how much a new process grows. In a process that has run before, a matcher
    could use memory that is already free, so that the process would not grow.
    """
    program = """
from matching import AMQP, create
from trellis.bench.matching.memory import subscription_size
words = "\\n".join(f"a.b{number}.*" for number in range(30_000)).encode()
print(subscription_size(lambda: create("trie", AMQP), words))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert 30 < float(answer.stdout) < 2_000


def test_splitting_once_finds_the_same() -> None:
    words = GROWING[0].words(50)
    figures = splitting(words.patterns, words.topics[:20], 0.001)
    assert figures["each"] > 0 and figures["once"] > 0


def test_every_part_has_cases_with_names_of_their_own() -> None:
    cases = [case for batch in batches(list(PARTS), [1_000]) for case in batch.cases]
    assert len({case.key for case in cases}) == len(cases)
    assert {case.part for case in cases} == set(PARTS)
    sizes = [batch.cases[0].size for batch in batches(["iot", "tp"], [10, 1_000, 100])]
    assert sizes == sorted(sizes)


def test_peers_are_read_from_the_folder(folder: Path) -> None:
    contenders = peers(folder)
    assert [each.name for each in contenders if each.missing] == ["absent"]
    assert contenders[0].command[1] == str(folder / "peer.py")
    (folder / "peers.toml").write_text("[[peer]]\nname = 'x'\n")
    with pytest.raises(ValueError, match="cannot read the list of peers"):
        peers(folder)


def test_a_contender_may_be_slow_end_or_give_invalid_answers(folder: Path) -> None:
    request = {"kind": "workload"}
    with RunningContender(peer(folder, "right")) as process:
        assert process.ask(request, 30) == {"lookup": 1.0, "octets": 2.0}
    with (
        RunningContender(peer(folder, "sleeps")) as process,
        pytest.raises(Slow, match=r"no answer within 0\.01 s"),
    ):
        process.ask(request, 0.01)
    with RunningContender(peer(folder, "ends")) as process:
        with pytest.raises(ContenderFailed, match="it broke"):
            process.ask(request, 30)
        with pytest.raises(ContenderFailed, match="it broke"):
            process.ask(request, 30)
    with (
        RunningContender(peer(folder, "babbles")) as process,
        pytest.raises(ContenderFailed, match="the answer is not JSON: b'hello"),
    ):
        process.ask(request, 30)


def test_ours_run_interpreted_beside_compiled() -> None:
    contenders = {each.name: each for each in ours(("trie",))}
    assert set(NAMES) < set(contenders)
    with RunningContender(contenders["trie-py"]) as process:
        assert "interpreted" in process.ask({"kind": "about"}, 60)["version"]
        assert process.ask(
            {"kind": "dance"} | dict.fromkeys(("patterns", "topics", "further"), __file__), 60
        ) == {"unable": "unknown request 'dance'"}


def test_a_run_leaves_tables_and_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    code = main(
        [
            "bench",
            "matching",
            "tp",
            "--sizes",
            "40",
            "--rounds",
            "2",
            "--seconds",
            "0.001",
            "--peers",
            str(folder),
            "--algorithms",
            "trie,bitmap,right,wrong,unable,ends,absent",
            "--json",
            str(file),
        ]
    )
    printed = capsys.readouterr()
    assert code == 1
    assert "wrong, tp tp 40 workload: wrong: 2 topics found nothing" in printed.err
    assert "ends, tp tp 40 workload: failed: it broke" in printed.err
    assert "tp 40\n" in printed.out and "not installed: absent (install it)" in printed.out
    results = read(file)
    assert {"cpu", "python", "kernel", "load", "time", "command"} < set(
        results.environment
    ) and results.loop_ns > 0
    key = "tp tp 40 workload"
    assert [
        len(results.cells[name][key].rounds)
        for name in ("trie", "bitmap", "right", "wrong", "unable", "ends")
    ] == [2, 2, 2, 0, 0, 0]
    assert [results.cells[name][key].why for name in ("trie", "wrong", "unable", "ends")] == [
        "",
        "wrong",
        "unable",
        "failed",
    ]
    assert (
        results.median("right", key, "lookup") == 1.0
        and results.median("wrong", key, "lookup") is None
    )
    assert len(results.cells["trie"]["tp tp 40 memory"].rounds) == 1
    assert (
        "interpreted" in results.contenders["trie"].version
        or "compiled" in results.contenders["trie"].version
    )
    together = merged([read(file), results])
    assert together.environment.pop("commands") == 2 * [results.environment["command"]]
    assert together.environment.pop("loads") == 2 * [results.environment["load"]]
    assert together.text() == results.text()
    file.write_text("{}")
    with pytest.raises(ValueError, match="has no results of format"):
        read(file)


def test_json_on_standard_output_has_no_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "bench",
                "matching",
                "splitting",
                "--rounds",
                "1",
                "--seconds",
                "0.001",
                "--peers",
                "none",
                "--algorithms",
                "naive",
                "--json",
                "-",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1 and document["cells"]["naive"]["splitting tp 1000 splitting"][
        "medians"
    ].keys() == {"each", "once"}


def test_medians_and_spread_are_of_each_figure_by_itself() -> None:
    cell = ResultCell(
        [{"lookup": 1.0, "load": 9.0}, {"lookup": 3.0, "load": 1.0}, {"lookup": 2.0, "load": 2.0}]
    )
    assert cell.medians == {"lookup": 2.0, "load": 2.0} and cell.spread("lookup") == 1.0
    cell.slow = "no answer within 5 s"
    assert cell.medians == {} and cell.why == "slow"


def test_matchers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matchers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["name", "lookup", "subscribe"]
    assert [line.split()[0] for line in lines[1 : 1 + len(NAMES)]] == list(NAMES)
    assert main(["matchers", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    naive = next(row for row in rows if row["name"] == "naive")
    assert (
        naive["usable"] is True
        and naive["lookup"] == "O(N x L)"
        and naive["origin"] == "articles 1 and 3"
    )


def test_parts_and_contenders_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "matching", "--list", "--peers", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{printed}" for name in (*PARTS, "trie", "right"))
    assert "not installed: install it" in printed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["iott"], "unknown part iott; the nearest is iot"),
        (["--algorithms", "tire"], "unknown algorithm tire; the nearest is trie"),
        (
            ["--peers", "/no/such/folder"],
            "--peers: cannot read the list of peers in /no/such/folder/peers.toml",
        ),
        (["--sizes", "10,x"], 'argument --sizes: must be a whole number of at least 1, got "x"'),
        (["--rounds", "0"], 'argument --rounds: must be a whole number of at least 1, got "0"'),
        (
            ["--seconds", "soon"],
            'argument --seconds: must be a number of seconds from 0.0001 to 3600, got "soon"',
        ),
        (
            ["--algorithms", "trie", "--json", "/no/such/folder/file"],
            "cannot write /no/such/folder/file: No such file or directory",
        ),
    ],
)
def test_wrong_arguments_end_with_2(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "matching", *words]) == 2
    printed = capsys.readouterr().err
    assert problem in printed and printed.count("\n") == 1


def test_no_usable_contender_ends_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "matching", "--algorithms", "absent", "--peers", str(folder)]) == 1
    expected = "none of the chosen algorithms and peers can run here: install it"
    assert expected in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(not BENCHMARKS.exists(), reason="needs the directory benchmarks")
def test_a_report_puts_tables_and_charts_into_a_document(tmp_path: Path) -> None:
    file, document = tmp_path / "run.json", tmp_path / "page.md"
    parts = ["tp", "article", "churn", "splitting"]
    assert (
        main(
            [
                "bench",
                "matching",
                *parts,
                "--sizes",
                "20",
                "--rounds",
                "1",
                "--seconds",
                "0.0005",
                "--peers",
                "none",
                "--algorithms",
                "trie,route-cache",
                "--json",
                str(file),
            ]
        )
        == 0
    )
    document.write_text(
        "# Before\n<!-- results:begin -->\nfigures of yesterday\n<!-- results:end -->\nbehind\n"
    )
    report = [
        sys.executable,
        str(BENCHMARKS / "matching" / "report.py"),
        str(file),
        "--into",
        str(document),
    ]
    done = subprocess.run(report, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    text = document.read_text()
    assert text.startswith("# Before\n") and text.endswith("behind\n") and "yesterday" not in text
    for wanted in (
        "### Targets",
        "### tp: three words",
        "### Article 1",
        "“CS-trie”",
        "route cache, trie",
        "`zipf-1.7`: ",
        "### Contenders",
    ):
        assert wanted in text
    pictures = {path.name for path in (tmp_path / "page").iterdir()}
    assert {"lookup-tp.svg", "article.svg", "churn.svg", "memory.svg"} <= pictures
    assert all(f"(page/{name})" in text for name in pictures)
    document.write_text("no marks")
    done = subprocess.run(report, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "must have the lines" in done.stderr
    assert document.read_text() == "no marks"


@pytest.mark.long
@pytest.mark.skipif(
    not any((BENCHMARKS / "matching" / ".tools").glob("*")),
    reason="needs benchmarks/matching/install.sh",
)
def test_peers_that_are_installed_answer_as_we_do(capsys: pytest.CaptureFixture[str]) -> None:
    installed = [each.name for each in peers(BENCHMARKS / "matching") if not each.missing]
    code = main(
        [
            "bench",
            "matching",
            "tp",
            "iot",
            "adv",
            "--sizes",
            "60",
            "--rounds",
            "1",
            "--seconds",
            "0.0005",
            "--peers",
            str(BENCHMARKS / "matching"),
            "--algorithms",
            ",".join(installed),
        ]
    )
    assert (code, capsys.readouterr().err) == (0, "")
