"""`trellis peek` against a broker of the test."""

from __future__ import annotations

import pytest

from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start


@pytest.fixture
async def commands(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    broker = await start(**users())
    assert (await api(broker, "PUT", "queues/%2F/q"))[0] == 201
    client = await broker.amqp()
    await client.socket.send(
        publication("", "q", b'{"order": 1}\nnext', content_type="application/json")
        + publication("", "q", bytes(range(20)), expiration="3600000", headers={"a": [1, "x"]})
        + publication("", "q", "Grüße".encode() * 400)
    )
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: queue.depth == 3)
    return Commands(broker, capsys, monkeypatch)


async def test_messages_are_printed_as_text_or_bytes(commands: Commands) -> None:
    lines = (await commands.out("peek", "q", "--count", "2")).splitlines()
    assert lines == [
        "1  sequence 1, 17 B, not on disk",
        "   exchange '', routing key 'q'",
        "   content_type: application/json",
        '   {"order": 1}',
        "   next",
        "2  sequence 2, 20 B, not on disk, expires in 59 min",
        "   exchange '', routing key 'q'",
        '   headers: {"a":[1,"x"]}',
        "   expiration: 3600000",
        "   00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................",
        "   00000010  10 11 12 13                                      ....",
        "to print the next messages, give --after 2",
    ]
    # The limit of 3 bytes cuts a character in two; the command prints no part of it.
    assert (await commands.out("peek", "q", "--after", "2", "--bytes", "3")).splitlines() == [
        "1  sequence 3, 2.7 KiB, not on disk",
        "   exchange '', routing key 'q'",
        "   Gr",
        "   ... 2.7 KiB more",
    ]
    assert "   00000000  7b 22 6f 72 64" in await commands.out("peek", "q", "--hex")


async def test_json_has_the_rows_of_the_api(commands: Commands) -> None:
    rows = await commands.json("peek", "q", "--bytes", "4")
    assert [row["sequence"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["payload"] == '{"or'
    assert (rows[2]["payload"], rows[2]["payload_bytes"]) == ("Grü", 2_800)
    assert await commands.out("peek", "q", "--after", "3") == (
        "no message waits in queue 'q' after the sequence number 3\n"
    )


async def test_errors_name_the_queue(commands: Commands) -> None:
    assert (
        await commands.fails("peek", "none")
        == "trellis: no queue 'none' in vhost '/'; next: trellis list queues\n"
    )
    assert "'after' must be the 'sequence' of a message" in await commands.fails(
        "peek", "q", "--after", "x"
    )
    assert "must be a whole number" in await commands.fails("peek", "q", "--count", "0", code=2)
