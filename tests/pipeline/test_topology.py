"""Tests of past bindings, which the pipeline reads from the stream `$topology`.

The bindings must equal the bindings that the test recorded. For a time about which the stream says
nothing, the pipeline must report an error.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.job_bindings import parse_time, read_bindings
from pyspark_trellis.journal import Directory
from pyspark_trellis.topology import as_definitions, replay
from tests.broker import Address, BrokerProcess
from tests.clients import connect_packet, packet, text
from tests.pipeline.traffic import (
    Subscription,
    bound,
    change,
    definitions,
    numbered,
    snapshot,
    subscribed,
    subscriptions,
)
from tests.pipeline.written import START, Row, journal
from trellis.cli import parser


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


def stream(path: Path, changes: Sequence[Row], first: int = 0) -> Directory:
    journal(path, numbered(list(changes), first), a_batch=11, a_segment=60)
    return Directory(str(path))


def heard_of(directory: Directory, at: datetime | None) -> set[Subscription]:
    return {
        Subscription(facts["destination"], facts["routing_key"])
        for facts in replay(directory, at).subscriptions()
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_state_at_any_moment_includes_all_earlier_changes(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Compare the bindings in `$topology` at each minute with the bindings that the test recorded.

    Bindings and subscriptions come and go. At times, the broker writes a new snapshot, or restarts
    without its sessions.
    """
    rng = random.Random(seed)
    document, heard = definitions(rng, 5), set(subscriptions(rng, 4))
    document = {
        **document,
        "bindings": [
            each | {"arguments": {"n": at}} for at, each in enumerate(document["bindings"])
        ],
    }
    changes = snapshot(document, sorted(heard), START)
    states = {}
    for number in range(1, 15):
        at, what = minute(number), rng.random()
        if what < 0.3:
            subscription = rng.choice(subscriptions(rng, 1))
            heard.add(subscription)
            changes.append(subscribed(subscription, at))
        elif what < 0.5 and heard:
            subscription = rng.choice(sorted(heard))
            heard.remove(subscription)
            changes.append(subscribed(subscription, at, "unsubscribe"))
        elif what < 0.7 and document["bindings"]:
            gone = rng.choice(document["bindings"])
            document = {
                **document,
                "bindings": [each for each in document["bindings"] if each is not gone],
            }
            changes.append(bound(gone, at, "unbind"))
        elif what < 0.85:
            changes += snapshot(document, sorted(heard), at, restarted=False)
        else:
            heard.clear()
            changes += snapshot(document, [], at)
        states[number] = (document, set(heard))
    directory = stream(tmp_path_factory.mktemp("topology") / "t", changes)
    for number, (expected, expected_subscriptions) in states.items():
        then = replay(directory, minute(number) + timedelta(seconds=30))
        assert {
            Subscription(facts["destination"], facts["routing_key"])
            for facts in then.subscriptions()
        } == expected_subscriptions
        replayed = as_definitions([then], "then")
        key = ("source", "destination", "routing_key")
        assert sorted(
            (each.source, each.destination, each.key)
            for each in replayed.bindings
            if each.kind != "session"
        ) == sorted(tuple(each[name] for name in key) for each in expected["bindings"])
        assert replayed.hosts["/"].queues == {each["name"] for each in expected["queues"]}
        assert (
            replayed.hosts["/"].types.items()
            >= {each["name"]: each["type"] for each in expected["exchanges"]}.items()
        )


def test_a_stream_without_its_beginning_is_known_from_its_first_snapshot_on(
    tmp_path: Path,
) -> None:
    document = definitions(random.Random(1), 3)
    subscription, late = Subscription("c", "a/#"), Subscription("c", "b/#")
    changes = [
        subscribed(Subscription("forgotten", "#"), minute(1)),
        *snapshot(document, [subscription], minute(5), restarted=False),
        subscribed(late, minute(8)),
    ]
    directory = stream(tmp_path / "t", changes, first=1000)
    assert heard_of(directory, minute(6)) == {subscription}
    assert heard_of(directory, None) == {subscription, late}
    with pytest.raises(
        PipelineError,
        match=r"has no bindings of 2026-03-01 12:03:00 UTC: "
        r"its first complete snapshot is of 2026-03-01 12:05:00 UTC, and retention keeps",
    ):
        replay(directory, minute(3))


def test_a_stream_that_cannot_be_replayed_is_a_one_line_error(tmp_path: Path) -> None:
    for name, changes, line in (
        (
            "none",
            [subscribed(Subscription("c", "#"), minute(1))],
            "has no complete snapshot of the bindings",
        ),
        (
            "torn",
            snapshot(definitions(random.Random(1), 2), [], START)[:-1],
            "has no complete snapshot of the bindings",
        ),
        (
            "odd",
            [change("bind", START, {})],
            "has a row 'bind' that this version of Trellis cannot read",
        ),
        (
            "started",
            [
                *snapshot(definitions(random.Random(1), 2), [], START),
                change("snapshot", minute(3), {"restarted": True}),
            ],
            "has no complete snapshot at 2026-03-01 12:03:00 UTC",
        ),
    ):
        with pytest.raises(PipelineError, match=re.escape(line)) as caught:
            replay(stream(tmp_path / name, changes))
        assert "\n" not in str(caught.value)
    with pytest.raises(PipelineError, match="that is not a JSON object"):
        replay(stream(tmp_path / "text", [change("bind", START, {}) | {"body": b"x"}]))


def test_a_moment_is_iso_8601(tmp_path: Path) -> None:
    assert (
        parse_time("2026-03-01T12:00")
        == parse_time("2026-03-01T12:00:00Z")
        == parse_time("2026-03-01T13:00+01:00")
        == START
    )
    with pytest.raises(PipelineError, match="--as-of is 'yesterday', but must be a time like"):
        parse_time("yesterday")


# -- the time in a command's arguments


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make an empty journal and, in the same directory, the stream `$topology`.

    In the stream, a binding and a subscription end in the fifth minute.
    """
    document = definitions(random.Random(4), 5)
    (tmp_path / "now.json").write_text(json.dumps(document))
    existing = [Subscription("c", "a/#"), Subscription("$share/g/b", "b")]
    stream(
        tmp_path / "%24topology",
        [
            *snapshot(document, existing, START),
            bound(document["bindings"][0], minute(5), "unbind"),
            subscribed(existing[0], minute(5), "unsubscribe"),
        ],
    )
    (tmp_path / "journal").mkdir()
    return tmp_path


def question(place: Path, job: str, *words: str) -> Any:
    return read_bindings(
        parser().parse(
            [
                "pipeline",
                job,
                "--journal",
                str(place / "journal"),
                *(word.format(place=place) for word in words),
            ]
        )
    )


def test_bindings_come_from_the_file_and_mqtt_subscriptions_from_the_topology(place: Path) -> None:
    about = question(place, "audit", "--definitions", "{place}/now.json")
    assert [(each.kind, each.destination) for each in about.effective.bindings][-1] == (
        "session",
        "$share/g/b",
    )
    sessions = (
        "MQTT sessions and groups: 1, their subscriptions: 1, "
        "from $topology of vhost '/' as of 2026-03-01 12:05:00 UTC"
    )
    assert about.sources == (f"bindings: {place}/now.json", sessions)
    alone = question(place, "audit", "--definitions", "{place}/now.json", "--topology", "none")
    assert len(alone.effective.bindings) == len(about.effective.bindings) - 1
    assert alone.sources[1] == (
        "MQTT sessions: unknown (--topology is none); "
        "messages that only MQTT sessions receive count as unroutable or lost"
    )


def test_without_a_file_the_bindings_come_from_the_topology(place: Path) -> None:
    now, then = question(place, "audit"), question(place, "audit", "--as-of", "2026-03-01T12:04:59")
    assert len(then.effective.bindings) == len(now.effective.bindings) + 2
    whatif = question(
        place, "whatif", "--definitions", "{place}/now.json", "--as-of", "2026-03-01T12:04:59"
    )
    assert whatif.proposed is not None
    assert (
        len(whatif.proposed.bindings)
        == len(whatif.effective.bindings)
        == len(then.effective.bindings)
    )
    assert whatif.proposed.hosts["/"].sessions == {"c", "$share/g/b"}


def test_a_vhost_without_a_topology_is_named(place: Path) -> None:
    (place / "two.json").write_text(json.dumps({"vhosts": [{"name": "/"}, {"name": "other"}]}))
    assert (
        question(place, "audit", "--definitions", "{place}/two.json")
        .sources[2]
        .startswith("MQTT sessions of vhost 'other': unknown")
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("audit", "--definitions", "{place}/now.json", "--as-of", "2026-03-01"),
            "--definitions names present bindings: leave out one of the two options",
        ),
        (
            ("audit", "--topology", "none", "--as-of", "2026-03-01T12:04"),
            "--as-of requires the stream $topology: --topology is none",
        ),
        (
            ("audit", "--topology", "none"),
            "the bindings are unknown (--topology is none): set --definitions FILE or --topology",
        ),
        (
            ("audit", "--topology", "{place}/nowhere"),
            "cannot read the journal {place}/nowhere: No such file or directory",
        ),
        (
            ("audit", "--as-of", "2026-03-01T11:59"),
            "has no bindings of 2026-03-01 11:59:00 UTC",
        ),
        (
            ("audit", "--as-of", "9999-12-31T23:59:59-12:00"),
            "--as-of is '9999-12-31T23:59:59-12:00', but must be a time like 2026-03-01T12:00:00Z",
        ),
    ],
)
def test_unsuitable_rows_or_options_are_a_one_line_error(
    place: Path, words: Sequence[str], line: str
) -> None:
    with pytest.raises(PipelineError, match=re.escape(line.format(place=place))):
        question(place, *words)


def test_a_running_broker_gives_the_same_bindings_also_after_a_restart(tmp_path: Path) -> None:
    """Compare the bindings read over HTTP with the broker's bindings, before and after a restart.

    The pipeline finds the stream `$topology` of the broker whose journal it reads. A clean session
    does not exist after the restart.
    """
    (tmp_path / "definitions.json").write_text(
        json.dumps(
            {
                "vhosts": [{"name": "/"}],
                "exchanges": [],
                "bindings": [
                    {
                        "source": "amq.topic",
                        "vhost": "/",
                        "destination": "q",
                        "destination_type": "queue",
                        "routing_key": "a.#",
                        "arguments": {},
                    }
                ],
                "queues": [
                    {
                        "name": "q",
                        "vhost": "/",
                        "durable": True,
                        "auto_delete": False,
                        "arguments": {},
                    },
                    {
                        "name": "journal",
                        "vhost": "/",
                        "durable": True,
                        "auto_delete": False,
                        "arguments": {"x-queue-type": "stream", "x-journal": True},
                    },
                ],
            }
        )
    )
    words = (
        "--data-dir",
        str(tmp_path / "data"),
        "--definitions-file",
        str(tmp_path / "definitions.json"),
    )
    for clean, expected in (
        (False, {"lasting"}),
        (True, {"lasting", "passing"}),
        (None, {"lasting"}),
    ):
        process = BrokerProcess(*words)
        try:
            if clean is not None:
                client = subscribe(process.mqtt, "passing" if clean else "lasting", clean)
            http = process.addresses["http"]
            about = read_bindings(
                parser().parse(
                    [
                        "pipeline",
                        "audit",
                        "--journal",
                        f"http://{http.host}:{http.port}",
                        "--stream",
                        "journal",
                    ]
                )
            )
            host = about.effective.hosts["/"]
            assert host.sessions == expected
            assert {
                each.destination for each in about.effective.bindings if each.kind == "queue"
            } == {"q"}
            assert host.queues == {"q", "journal"}
            directory = Directory(str(tmp_path / "data" / "streams" / "%2F" / "%24topology"))
            assert replay(directory, datetime.now(UTC)).sessions() == len(expected)
        finally:
            client.close()
            process.stop()


def subscribe(address: Address, name: str, clean: bool) -> socket.socket:
    """Connect an MQTT client and subscribe to `a/+`; return the client's open socket."""
    client = socket.create_connection((address.host, address.port), 30)
    for sent, answer in (
        (connect_packet(name, clean), 4),
        (packet(0x82, b"\0\1" + text("a/+") + b"\1"), 5),
    ):
        client.sendall(sent)
        assert len(client.recv(answer, socket.MSG_WAITALL)) == answer
    return client


def test_a_running_broker_has_the_topology_of_every_vhost(tmp_path: Path) -> None:
    journals = [
        {
            "name": "journal",
            "vhost": vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "stream", "x-journal": True},
        }
        for vhost in ("/", "eu")
    ]
    rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "vhosts": [{"name": "/"}, {"name": "eu"}, {"name": "us"}],
        "permissions": [rights | {"vhost": vhost} for vhost in ("/", "eu", "us")],
        "queues": [*journals, {**journals[1], "name": "q", "arguments": {}}],
    }
    (tmp_path / "definitions.json").write_text(json.dumps(document))
    words = ("--definitions-file", str(tmp_path / "definitions.json"))
    process = BrokerProcess("--data-dir", str(tmp_path / "data"), *words)
    try:
        http = process.addresses["http"]
        place = f"http://{http.host}:{http.port}"
        question = ["pipeline", "audit", "--journal", place, "--stream", "eu/journal"]
        about = read_bindings(parser().parse(question))
    finally:
        process.stop()
    assert {vhost: host.queues for vhost, host in about.effective.hosts.items()} == {
        "/": {"journal"},
        "eu": {"journal", "q"},
    }
    assert about.sources[0].startswith("bindings: $topology of vhost 'eu' as of ")
    assert "; $topology of vhost '/' as of " in about.sources[0]
