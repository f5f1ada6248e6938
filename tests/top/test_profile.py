"""Tests of the setting matcher.profile, a file that `trellis pipeline advise` writes.

The broker reads the file at the start and at SIGHUP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.topic import TopicExchange
from tests.top.conftest import Start
from tests.top.running import Running, settings
from trellis.server.matching_profile import read
from trellis.settings import SettingsError

ALLOWED = ("auto", "trie", "shapes", "bitmap")


def profile(path: Path, routes: int = 4096, **others: Any) -> dict[str, Any]:
    """Write a profile for amq.topic to `path`; return settings that name the profile."""
    row = {
        "vhost": "/",
        "exchange": "amq.topic",
        "matcher": "trie",
        "prewarm": ["a.b", "c", "x/y", "$x"],
        "measured": {"trie": 100},
    } | others
    path.write_text(
        json.dumps(
            {
                "format": 1,
                "made_at": "2026-03-01",
                "messages": 7,
                "routes": routes,
                "exchanges": [row],
            }
        )
    )
    return {"matcher": {"profile": str(path)}}


def topics(running: Running) -> TopicExchange:
    exchange = running.node.broker.vhosts["/"].exchanges["amq.topic"]
    assert isinstance(exchange, TopicExchange)
    return exchange


def routes(running: Running, front: str) -> set[bytes]:
    return {
        data
        for context in running.node.broker.vhosts["/"].contexts
        if context.front == front
        for data in context.routes
    }


async def test_a_broker_starts_with_the_profile(start: Start, tmp_path: Path) -> None:
    running = await start(**profile(tmp_path / "p.json"))
    assert topics(running).algorithm == "trie"
    assert running.node.broker.limits.routes == 4096
    client = await running.mqtt("first")
    await client.ping()
    assert routes(running, "mqtt311") == {b"a/b", b"c", b"x.y"}
    watcher = await running.mqtt("second")
    await watcher.subscribe("a/#")
    await client.socket.send(b"\x30\x06\x00\x03a/bx")
    assert await watcher.socket.exactly(8) == b"\x30\x06\x00\x03a/bx"
    await watcher.leave()
    await client.leave()


async def test_a_profile_is_read_again_and_bindings_stay(start: Start, tmp_path: Path) -> None:
    running = await start()
    vhost = running.node.broker.vhosts["/"]
    vhost.bind("amq.topic", Binding("a.*", vhost.declare_queue("q")))
    named = vhost.declare_exchange(
        "named", "topic", ExchangeOptions(arguments={"x-matcher": "shapes"})
    )
    assert isinstance(named, TopicExchange)
    assert topics(running).algorithm == "auto"
    for matcher in ("bitmap", "shapes"):
        await running.reload(settings(**profile(tmp_path / "p.json", matcher=matcher)))
        assert topics(running).algorithm == matcher
        assert [binding.key for binding in topics(running).match("a.b", {})] == ["a.*"]
        assert topics(running).match("b.b", {}) == []
        assert named.algorithm == "shapes"
    await running.reload(settings())
    assert topics(running).algorithm == "auto"
    assert running.node.broker.limits.routes == running.node.settings.limits.routes


async def test_a_profile_that_is_none_changes_nothing(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = profile(tmp_path / "p.json")
    running = await start(**chosen)
    (tmp_path / "p.json").write_text("{")
    await running.reload(settings(**chosen))
    assert "reload_refused" in caplog.text
    assert topics(running).algorithm == "trie"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not a matching profile: Input data was truncated"),
        (
            '{"format": 1, "routes": 0, "exchanges": []}',
            "is not a matching profile: Expected `int` >= 1",
        ),
        (
            '{"format": 2, "routes": 9, "exchanges": []}',
            "has format 2, and this version of Trellis reads only 1",
        ),
        (
            (
                '{"format": 1, "routes": 9, "exchanges": '
                '[{"vhost": "/", "exchange": "e", "matcher": "naive"}]}'
            ),
            "exchange 'e' the matcher 'naive', which is missing in matcher.allowed",
        ),
        (
            (
                '{"format": 1, "routes": 9, "exchanges": '
                '[{"vhost": "/", "exchange": "e", "matcher": "best"}]}'
            ),
            "exchange 'e' the matcher 'best', which does not exist",
        ),
    ],
)
def test_error_of_a_profile_is_reported(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read(str(tmp_path / "p.json"), ALLOWED)
    assert str(caught.value).startswith(f"matcher.profile: {tmp_path}/p.json ")
    assert error in str(caught.value)


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"matcher\.profile: .*/p\.json: No such file or directory; `trellis pipeline advise",
    ):
        read(str(tmp_path / "p.json"), ALLOWED)
