"""`GET /api/topic-readers/VHOST` and `trellis permissions readers`: who may read a topic filter."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running
from tests.top.test_people import trellis
from tests.wire.mqtt.client import subscribe
from trellis.auth.passwords import HASHER

#: (name, read permission, topic rules) of stored users, with permissions to everything else.
STORED: Final[tuple[tuple[str, str, list[str]], ...]] = (
    ("everything", ".*", []),
    ("ruled", ".*", ["deny all plant/+/secret", "allow all plant/#"]),
    ("partly", ".*", ["deny all plant/9/secret", "allow subscribe plant/#"]),
    ("publisher", ".*", ["allow publish #"]),
    ("no_exchange", "^only$", []),
    ("own", ".*", ["allow subscribe plant/{username}/#"]),
    ("device", ".*", ["allow subscribe plant/{client_id}/#"]),
)
FILTERS: Final = (
    "plant/7/secret",
    "plant/9/secret",
    "plant/+/secret",
    "plant/#",
    "plant/own/#",
    "plant/device-1/x",
    "other",
    "+/7/secret",
    "#",
)


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users(), mqtt={"anonymous_rules": ["allow subscribe public/#"]})
    stored, known = running.node.broker.users, HASHER.hash(b"known")
    for name, read, rules in STORED:
        stored.define(name, known, [])
        stored.set_permission("/", name, ".*", ".*", read)
        stored.set_rules("/", name, rules)
    return running


async def readers(broker: Running, topic_filter: str, more: str = "") -> dict[str, dict[str, Any]]:
    path = f"topic-readers/%2F?filter={quote(topic_filter, '')}{more}"
    status, rows = await api(broker, "GET", path)
    assert status == 200
    return {row["user"]: row for row in rows}


async def test_the_listed_users_are_those_that_can_subscribe(broker: Running) -> None:
    subscribed: dict[str, set[str]] = {topic_filter: set() for topic_filter in FILTERS}
    for name, _, _ in STORED:
        client = Mqtt0(await broker.socket("mqtt"))
        assert await client.connect("device-1", user=f"{name}/known") == 0
        for topic_filter, users_of in subscribed.items():
            await client.socket.send(subscribe(1, (topic_filter, 0)))
            if (await client.socket.exactly(5))[4] != 0x80:
                users_of.add(name)
        await client.socket.send(b"\xe0\x00")
        assert await client.socket.read_to_end() == b""
    for topic_filter, users_of in subscribed.items():
        listed = set(await readers(broker, topic_filter, "&client_id=device-1"))
        assert listed & {name for name, _, _ in STORED} == users_of, topic_filter


async def test_the_rules_that_decide_are_listed(broker: Running) -> None:
    by_user = await readers(broker, "plant/+/secret")
    assert by_user["everything"] == {
        "user": "everything",
        "reads": "all",
        "permission": ".*",
        "rules": [],
    }
    assert "ruled" not in by_user and "publisher" not in by_user and "no_exchange" not in by_user
    assert (by_user["partly"]["reads"], by_user["partly"]["rules"]) == (
        "some",
        ["deny all plant/9/secret", "allow subscribe plant/#"],
    )
    assert (by_user["own"]["reads"], by_user["own"]["rules"]) == (
        "some",
        ["allow subscribe plant/{username}/#"],
    )
    assert "device" not in by_user
    assert "device" in await readers(broker, "plant/+/secret", "&client_id=d")
    assert "anonymous" in await readers(broker, "public/x")
    await api(
        broker,
        "PUT",
        "topic-permissions/%2F/partly",
        {"exchange": "amq.topic", "write": ".*", "read": r"^plant\."},
    )
    by_user = await readers(broker, "plant/+/secret")
    assert by_user["partly"]["rules"][0] == r"topic permission ^plant\."
    assert "partly" not in await readers(broker, "#")


async def test_wrong_questions_are_refused(broker: Running) -> None:
    for path, status, text in (
        (
            "topic-readers/%2F?filter=a%2F%23%2Fb",
            400,
            "'filter' must be an MQTT topic filter, not 'a/#/b'",
        ),
        ("topic-readers/%2F", 400, "'filter' must be an MQTT topic filter, not ''"),
        ("topic-readers/none?filter=a", 404, "none"),
    ):
        code, answer = await api(broker, "GET", path)
        assert code == status and text in answer["reason"], answer
    status, _ = await api(broker, "GET", "topic-readers/%2F?filter=a", user=KNOWN["name"])
    assert status == 403


async def test_the_command_prints_a_table(
    broker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("permissions", "readers", "plant/+/secret")
    code, out, err = await trellis(broker, capsys, *words)
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    assert lines[0] == ["user", "reads", "permission", "rules"]
    assert ["everything", "all", ".*"] in lines
    assert ["partly", "some", ".*", "deny all plant/9/secret; allow subscribe plant/#"] in lines
    code, out, _ = await trellis(broker, capsys, *words, "--json", "--client-id", "d")
    assert {"partly", "device"} <= {row["user"] for row in json.loads(out)}
    code, out, _ = await trellis(broker, capsys, "permissions", "readers", "$SYS/x/#")
    assert code == 0
