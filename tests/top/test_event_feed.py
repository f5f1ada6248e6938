"""Tests of the events of the web page: viewers get the reason when the broker gives no state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.responses import StreamingResponse

from trellis.http.gateway import event_feed
from trellis.http.gateway.event_feed import Caller, EventFeed
from trellis.http.gateway.link import HttpRefusal


async def test_viewers_learn_why_there_is_no_news_and_the_news_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_feed, "EVENT_SECONDS", 0.001)
    refusal: list[Exception] = []

    async def ask(caller: Caller) -> Any:
        if refusal:
            raise refusal[0]
        return {"uptime": 1}

    feed = EventFeed(ask)
    streams = []
    for number in range(2):
        response = await feed.open(Caller(f"session-{number}", "127.0.0.1", 1, True))
        assert isinstance(response, StreamingResponse)
        streams.append(cast(AsyncIterator[bytes], response.body_iterator))
    news = b'data: {"uptime":1}\n\n'

    async def until(end: bytes) -> None:
        """Read the stream of each viewer up to an event that ends with `end`."""
        for stream in streams:
            async for event in stream:
                if event.endswith(end):
                    break

    await until(news)
    for problem, reason in (
        (HttpRefusal(503, "no_lease", "the log does not answer"), b"the log does not answer"),
        (TimeoutError(), b"the broker does not answer"),
    ):
        refusal[:] = [problem]
        await until(b'event: trouble\ndata: {"reason":"' + reason + b'"}\n\n')
        refusal.clear()
        await until(news)
    # A session that has ended ends its own stream only.
    refusal[:] = [HttpRefusal(401, "not_authorised", "the session has ended")]
    ended = [[event async for event in stream][-1] for stream in streams]
    assert ended == [b"event: ended\ndata: {}\n\n"] * 2
