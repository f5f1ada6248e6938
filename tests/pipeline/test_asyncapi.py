"""Tests of `trellis asyncapi`: addresses, inferred schemas, and the whole document."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from matching.grammar import swap
from pyspark_trellis.asyncapi import observations, receivers, schemas
from pyspark_trellis.asyncapi.addresses import (
    LEVELS_MAX,
    Parameter,
    Template,
    pattern_template,
    templates,
)
from pyspark_trellis.asyncapi.schemas import InferredSchema, NotJson, SchemaBudget, decoded
from tests.pipeline.traffic import SPECIAL, Subscription, definitions, numbered, snapshot, topics
from tests.pipeline.traffic import subscriptions as some_subscriptions
from tests.pipeline.written import START, Row, journal, row
from trellis.cli import main

Document = dict[str, Any]
ORDER: Final = {"id": 7, "lines": [{"sku": "a", "count": 1}], "note": None}


def addresses(*names: str, most: int = 3) -> list[str]:
    return sorted({each.address(".") for each in templates(names, most)})


# -- addresses


def test_a_level_with_many_words_becomes_a_parameter() -> None:
    few = [f"rooms.{name}.light" for name in ("hall", "kitchen", "attic")]
    assert addresses(*few) == sorted(few)
    assert addresses(*few, "rooms.cellar.light") == ["rooms.{room}.light"]
    assert addresses("a.x", "b.x", "c.x", "d.x") == ["{level1}.x"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["lamp.1.on", "lamp.2.on"], ["lamp.{lamp}.on"]),
        (["home.lamp1", "home.lamp2", "home.door"], ["home.door", "home.{home}"]),
        (["home.lamp1"], ["home.lamp1"]),
        (["api.v1.get", "api.v2.get"], ["api.v1.get", "api.v2.get"]),
        (["order.6a1e27d2-0c0f-4f3e-9d1c-6a1e27d20c0f"], ["order.{order}"]),
        (["key.deadbeef01", "key.facade"], ["key.facade", "key.{key}"]),
        (["a{b}.c"], ["{level1}.c"]),
        (["x.1.1", "x.2.2"], ["x.{x}.{level3}"]),
        (["class.1.x", "class.2.x"], ["class.{class}.x"]),
        (["", "."], ["", "."]),
    ],
)
def test_identifiers_become_a_parameter(names: list[str], expected: list[str]) -> None:
    assert addresses(*names) == expected


def test_an_address_in_mqtt_notation_exchanges_dots_and_slashes() -> None:
    [template] = templates([swap("plant/v1.2/temperature")], 20)
    assert template.address("/") == "plant/v1.2/temperature"


def test_levels_beyond_the_bound_are_one_parameter() -> None:
    long = ".".join(["x"] * 10_000)
    [template] = templates([long], 20)
    assert len(template.words) == LEVELS_MAX
    assert template.more
    assert isinstance(template.words[-1], Parameter)


def covers(template: Template, topic: str) -> bool:
    words = topic.split(".", LEVELS_MAX - 1) if template.more else topic.split(".")
    return len(words) == len(template.words) and all(
        isinstance(pattern, Parameter) or pattern == word
        for pattern, word in zip(template.words, words, strict=True)
    )


WORDS: Final = st.sampled_from(["a", "b", "c", "lamp1", "lamp2", "", "{x}", "7", "8", "v1"])
TOPICS: Final = st.lists(st.lists(WORDS, min_size=1, max_size=4).map(".".join), unique=True)


@given(TOPICS, st.integers(0, 4), st.randoms(use_true_random=False))
def test_an_address_covers_its_topics_in_any_order(
    names: list[str], most: int, rng: random.Random
) -> None:
    addresses = dict(zip(names, templates(names, most), strict=True))
    shuffled = rng.sample(names, len(names))
    assert addresses == dict(zip(shuffled, templates(shuffled, most), strict=True))
    for topic, template in addresses.items():
        assert covers(template, topic)
        assert len({each.name for each in template.parameters}) == len(template.parameters)
    # Below the same words, at most `most` words stay apart.
    for template in addresses.values():
        for level in range(len(template.words)):
            beside = {
                each.words[level]
                for each in addresses.values()
                if len(each.words) > level and _same(each.words[:level], template.words[:level])
            }
            assert len([word for word in beside if isinstance(word, str)]) <= most


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    plain = [
        [None if isinstance(word, Parameter) else word for word in words] for words in (one, other)
    ]
    return plain[0] == plain[1]


def test_wildcards_of_a_binding_are_parameters() -> None:
    template = pattern_template("sensors.*.#")
    assert template.address(".") == "sensors.{sensor}.{level3}"
    assert template.more


# -- schemas


def inferred(*values: Any, room: int = 1_000) -> Document:
    schema = InferredSchema(SchemaBudget(room))
    for value in values:
        schema.add(value)
    return schema.schema()


def test_a_schema_names_types_properties_and_formats() -> None:
    times = (
        {"at": "2026-03-01T12:00:00Z", "n": 1},
        {"at": "2026-03-01T12:00:00.5+01:00", "n": 1.5},
    )
    assert inferred(ORDER, ORDER | {"note": "x", "more": True}) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"count": {"type": "integer"}, "sku": {"type": "string"}},
                    "required": ["count", "sku"],
                },
            },
            "more": {"type": "boolean"},
            "note": {"type": ["null", "string"]},
        },
        "required": ["id", "lines", "note"],
    }
    assert inferred(*times)["properties"] == {
        "at": {"type": "string", "format": "date-time"},
        "n": {"type": "number"},
    }
    assert inferred("2026-03-01T12:00:00Z", "yesterday") == {"type": "string"}


VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@given(st.lists(VALUES, min_size=1, max_size=8), st.sampled_from([0, 3, 1_000]))
def test_every_value_is_valid_under_the_schema(values: list[Any], room: int) -> None:
    schema = inferred(*values, room=room)
    jsonschema.Draft7Validator.check_schema(schema)
    for value in values:
        jsonschema.Draft7Validator(schema).validate(value)


def test_objects_with_any_key_are_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "PROPERTIES_MAX", 5)
    values = [{f"key{n}": {"n": n}} for n in range(8)]
    schema = inferred(*values)
    assert set(schema) == {"type", "additionalProperties"}
    assert schema["additionalProperties"]["type"] == "object"
    for value in values:
        jsonschema.Draft7Validator(schema).validate(value)


def test_a_schema_has_bounded_size_whatever_is_published() -> None:
    budget = SchemaBudget(500)
    for number in range(20):
        schema = InferredSchema(budget)
        schema.add({f"{number}.{n}": [{"x": [n]}] for n in range(1_000)})
    assert budget.room == 0
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert json.dumps(inferred(deep)).count("items") == schemas.DEPTH_MAX
    with pytest.raises(NotJson):
        decoded(b"[" * 100_000)
    with pytest.raises(NotJson):
        decoded(b"\xff")


# -- the document


def write(tmp_path: Path, rows: list[Row], changes: list[Row] | None = None) -> str:
    for offset, each in enumerate(rows):
        each["offset"] = offset
        each["published_at"] = START + timedelta(seconds=offset)
    place = tmp_path / "streams" / "%2F" / "journal"
    journal(place, rows, 20, 60)
    if changes is not None:
        journal(place.parent / "%24topology", numbered(changes), 20, 1_000)
    return str(place)


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> Document:
    capsys.readouterr()
    assert main(["asyncapi", *words]) == 0
    document: Document = yaml.safe_load(capsys.readouterr().out)
    return document


def binding(key: str, queue: str, source: str = "amq.topic") -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": queue,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
    }


DEFINED: Final[Document] = {
    "vhosts": [{"name": "/"}],
    "exchanges": [],
    "queues": [{"name": name, "vhost": "/"} for name in ("orders", "idle", "tasks")],
    "bindings": [binding("orders.#", "orders"), binding("never.*", "idle")],
}


def plant() -> list[Row]:
    """Return messages of sensors over MQTT, and of a shop and a task over AMQP."""
    rows = [
        row(0, f"sensors.{n}.temperature", protocol="mqtt50", publisher="plant", body=b'{"c":1.5}')
        for n in range(40)
    ]
    rows += [
        row(
            0,
            "orders.new",
            publisher="shop",
            content_type="application/json",
            type=kind,
            headers='{"trace": "x"}',
            body=json.dumps(ORDER).encode(),
        )
        for kind in ("created", "changed")
    ]
    rows.append(row(0, "tasks", exchange="", qos=0, content_type="text/plain", body=b"21"))
    rows.append(row(0, "orders.dead", protocol="internal", publisher=""))
    return rows


def target(document: Document, reference: dict[str, str]) -> Any:
    node: Any = document
    for part in reference["$ref"].removeprefix("#/").split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return target(document, node) if "$ref" in node else node


def operations(document: Document) -> set[tuple[str, str, int]]:
    """Return (action, address, number of kinds of messages) of each operation."""
    return {
        (
            each["action"],
            target(document, each["channel"])["address"],
            len(each.get("messages", ())),
        )
        for each in document["operations"].values()
    }


def test_topics_bindings_and_bodies_become_channels_operations_and_schemas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = [Subscription("s", "sensors/+/temperature"), Subscription("t", "silent/#")]
    place = write(tmp_path, plant(), snapshot(DEFINED, heard, START))
    document = exported(capsys, "--journal", place)
    assert operations(document) == {
        ("send", "sensors/{sensor}/temperature", 1),
        ("receive", "sensors/{sensor}/temperature", 1),
        ("send", "orders.new", 2),
        ("receive", "orders", 3),
        ("send", "tasks", 1),
        ("receive", "tasks", 1),
        ("receive", "idle", 0),
        ("receive", "silent/{silent}", 0),
    }
    channels = {each["address"]: each for each in document["channels"].values()}
    assert set(channels) == {
        *("sensors/{sensor}/temperature", "silent/{silent}"),
        *("orders.new", "orders.dead", "never.{never}", "orders", "idle", "tasks"),
    }
    sensors = channels["sensors/{sensor}/temperature"]
    assert sensors["parameters"]["sensor"]["examples"] == ["0", "1", "10"]
    assert [target(document, each)["protocol"] for each in sensors["servers"]] == ["mqtt"]
    [message] = sensors["messages"].values()
    assert target(document, message)["payload"]["properties"] == {"c": {"type": "number"}}
    orders = channels["orders.new"]
    assert orders["bindings"]["amqp"]["exchange"] == {
        "name": "amq.topic",
        "vhost": "/",
        "type": "topic",
    }
    created = target(document, orders["messages"]["created"])
    assert created["contentType"] == "application/json"
    assert created["payload"] == inferred(ORDER)
    assert created["headers"] == inferred({"trace": "x"})
    [task] = channels["tasks"]["messages"].values()
    assert "payload" not in target(document, task)
    assert document["operations"]["send.queue.tasks"]["bindings"]["amqp"]["deliveryMode"] == 1


@pytest.mark.parametrize("mqtt", ["mqtt310", "mqtt311"])
@pytest.mark.parametrize("amqp", ["amqp091", "http"])
def test_the_same_topic_of_two_protocols_is_two_channels_with_the_same_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], amqp: str, mqtt: str
) -> None:
    rows = [row(0, "a.b", protocol=name) for name in (amqp, mqtt)]
    document = exported(capsys, "--journal", write(tmp_path, rows))
    channels = list(document["channels"].values())
    assert {each["address"] for each in channels} == {"a.b", "a/b"}
    assert channels[0]["messages"] == channels[1]["messages"]
    assert document["servers"]["mqtt"]["protocolVersion"] == "3.1.1"


def test_an_operation_names_some_publishers_and_counts_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(0, "a.b", publisher=f"user{number:02}") for number in range(12)]
    document = exported(capsys, "--journal", write(tmp_path, rows))
    [operation] = document["operations"].values()
    names = ", ".join(f"user{number:02}" for number in range(10))
    assert operation["description"] == f"Published by {names} and 2 more."


def test_definitions_without_a_journal_become_channels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "defs.json").write_text(json.dumps(DEFINED))
    words = ("--journal", "none", "--definitions", str(tmp_path / "defs.json"))
    document = exported(capsys, *words, "--server", "ws://localhost:15675")
    assert operations(document) == {("receive", "orders", 0), ("receive", "idle", 0)}
    assert document["servers"]["ws"]["host"] == "localhost:15675"


@pytest.mark.parametrize("variable", [True, False])
def test_the_servers_have_the_host_of_the_broker_that_is_asked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: bool,
) -> None:
    (tmp_path / "defs.json").write_text(json.dumps(DEFINED))
    words = ["--journal", "none", "--definitions", str(tmp_path / "defs.json")]
    url = "http://broker.example:15672"
    if variable:
        monkeypatch.setenv("TRELLIS_URL", url)
    else:
        words += ["--url", url]
    servers = exported(capsys, *words)["servers"]
    assert servers and {one["host"].partition(":")[0] for one in servers.values()} == {
        "broker.example"
    }


def test_samples_are_bounded_and_spread_over_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "SAMPLES", 10)
    monkeypatch.setattr(observations, "BODY_MAX", 100)
    bodies = [json.dumps({f"part{n // 25}": n}).encode() for n in range(100)]
    rows = [row(0, "t", body=body) for body in bodies] + [row(0, "big", body=b'"%s"' % (b"x" * 99))]
    document = exported(capsys, "--journal", write(tmp_path, rows))
    messages = document["components"]["messages"]
    [message] = [each for each in messages.values() if each["x-trellis-messages"] == 100]
    assert message["x-trellis-samples"] == 10
    assert list(message["payload"]["properties"]) == ["part0", "part1", "part2", "part3"]
    assert "required" not in message["payload"]
    [big] = [each for each in messages.values() if each["x-trellis-messages"] == 1]
    assert "payload" not in big


def test_rare_topics_and_further_messages_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "ADDRESSES_MAX", 2)
    monkeypatch.setattr(observations, "MESSAGES_MAX", 3)
    monkeypatch.setattr(receivers, "UNOBSERVED_MAX", 0)
    rows = [row(0, "often", type=f"t{n}") for n in range(9)]
    rows += [row(0, name) for name in ("x", "x", "y")]
    document = exported(capsys, "--journal", write(tmp_path, rows))
    assert {each["address"] for each in document["channels"].values()} == {"often", "x"}
    assert len(document["components"]["messages"]) == 4
    text = document["info"]["description"]
    assert "12 published messages with 3 addresses" in text
    assert "Left out: 1 messages with rare topics, and 1 addresses." in text
    monkeypatch.setattr(observations, "COMBINATIONS_MAX", 4)
    rows = [row(0, f"t{n % 7}.x") for n in range(50)]
    document = exported(capsys, "--journal", write(tmp_path / "other", rows), "--no-examples")
    assert document["info"]["description"].startswith("Made from 50 published messages")
    assert "examples" not in str(document)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--journal", "none"), "so the bindings are required: set --definitions"),
        (("--journal", "J", "--server", "http://h"), "expected PROTOCOL://HOST:PORT"),
        (("--journal", "J", "--server", "mqtt://[::1"), "expected PROTOCOL://HOST:PORT"),
        (("--journal", "J", "--server", "mqtt://h:x"), "expected PROTOCOL://HOST:PORT"),
        (("--journal", "J", "--url", "http://[::1"), "--url: must be a URL such as"),
        (
            ("--journal", "J", "--output", "/nowhere/a.yaml"),
            "the directory /nowhere does not exist",
        ),
        (("--journal", "J", "--format", "xml"), "yaml, json"),
        (("--journal", "/nowhere"), "/nowhere"),
    ],
)
def test_a_mistake_is_explained_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    place = write(tmp_path, [row(0, "a")])
    assert main(["asyncapi", *(place if word == "J" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


# -- the official parser


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_the_official_parser_accepts_the_document(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.conformance import validated

    rng = random.Random(seed)
    document, heard = definitions(rng, 20), some_subscriptions(rng, 15)
    pool = [
        *topics(rng, 30),
        *SPECIAL,
        "a{b",
        "~/#",
        "$ref",
        "ä.ö",
        '"',
        "x" * 250,
        "gen-" + "x" * 22,
    ]
    kinds = (None, "application/json", "text/plain; charset=utf-8", "no type", "application/a+json")
    rows = [
        row(
            0,
            rng.choice(pool),
            exchange=rng.choice(("t", "u", "d", "f", "h", "", "amq.topic", "gone")),
            protocol=rng.choice(("amqp091", "mqtt50", "mqtt311", "internal")),
            publisher=rng.choice(("guest", "a/b", "`x`")),
            qos=rng.randrange(3),
            content_type=rng.choice(kinds),
            type=rng.choice((None, "created", "a/b~c", "")),
            headers=rng.choice((None, "{}", '{"a/b": [1, null]}')),
            body=rng.choice((b"", b"[]", b'{"$ref": 1, "a": {"b": []}}', b"1e3", b"\xff", b"null")),
        )
        for _ in range(200)
    ]
    place = write(tmp_path, rows, snapshot(document, heard, START))
    outputs = [tmp_path / name for name in ("api.json", "api.yaml")]
    words = ("--server", "ws://h:1", "--server", "amqps://[::1]:5671", "--server", "mqtt://h")
    for output in outputs:
        assert main(["asyncapi", "--journal", place, *words, "--output", str(output)]) == 0
    assert validated(*outputs).count(": 3.0.0, ") == 2
    assert yaml.safe_load(outputs[1].read_text()) == json.loads(outputs[0].read_text())
