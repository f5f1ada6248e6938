"""Tests of the process that makes the summaries of full segments."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.streams.test_segment_topics import place, start, summaries
from trellis.topic_summaries import service
from trellis.topic_summaries.service import TopicSummaries

EXPECTED = {0: ["t.0", "t.1"], 2: ["t.2", "t.3"], 4: ["t.4", "t.5"]}


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """The directory of a stream with three full segments."""
    start(tmp_path / "d")
    return str(place(tmp_path / "d"))


def remove_summaries(directory: str) -> None:
    for file in Path(directory).glob("*.topics"):
        file.unlink()


async def until_idle(topic_summaries: TopicSummaries) -> None:
    """Wait until the process has summarized all segments of which the broker gave notice."""
    assert topic_summaries.task is not None
    await topic_summaries.task
    assert topic_summaries.task is None


def test_the_process_runs_after_the_start_and_after_each_notice(
    tmp_path: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.0)
    monkeypatch.setattr(service, "DIRECTORIES_MAX", 1)

    async def serve() -> None:
        topic_summaries = TopicSummaries()
        topic_summaries.add(directory)
        topic_summaries.add(f"{directory}/missing")
        assert topic_summaries.task is None
        topic_summaries.start()
        await until_idle(topic_summaries)
        assert summaries(tmp_path / "d") == EXPECTED
        remove_summaries(directory)
        topic_summaries.add(directory)
        await until_idle(topic_summaries)
        assert topic_summaries.failed == 0
        await topic_summaries.stop()

    asyncio.run(serve())
    assert summaries(tmp_path / "d") == EXPECTED


def test_a_failure_is_logged_and_the_next_notice_repeats_the_work(
    tmp_path: Path,
    directory: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.0)
    obstacle = Path(directory) / "0000000001-00000000000000000002.arrow.topics.tmp"
    obstacle.mkdir()

    async def serve() -> None:
        topic_summaries = TopicSummaries()
        topic_summaries.start()
        topic_summaries.add(directory)
        await until_idle(topic_summaries)
        assert topic_summaries.failed == 1
        obstacle.rmdir()
        topic_summaries.add(directory)
        await until_idle(topic_summaries)
        assert topic_summaries.failed == 1
        await topic_summaries.stop()

    asyncio.run(serve())
    assert summaries(tmp_path / "d") == EXPECTED
    line = "trellis: cannot write the summary of a segment's topics: "
    assert capfd.readouterr().err.startswith(line)
    assert "topic_summaries_failed" in caplog.text
    assert "the process ended with exit status 1" in caplog.text


@pytest.mark.parametrize("turns", [0, 1, 3, 100])
def test_the_broker_does_not_wait_for_the_process_when_it_stops(directory: str, turns: int) -> None:
    async def serve() -> None:
        topic_summaries = TopicSummaries()
        topic_summaries.start()
        topic_summaries.add(directory)
        task = topic_summaries.task
        assert task is not None
        for _ in range(turns):
            await asyncio.sleep(0)
        await topic_summaries.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(serve())
