"""Tests of moving from RabbitMQ: importing and exporting a definitions file.

An import reports the parts of the definitions that Trellis does not support.
"""

from __future__ import annotations

import copy
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pamqp.commands as spec
import pytest

from broker.compatibility import (
    COMPONENTS,
    DIFFERENT,
    EQUAL,
    FIELDS,
    MISSING,
    POLICY_KEYS,
    QUEUE_ARGUMENTS,
    judge_argument,
    judge_policy_key,
)
from broker.definitions.rabbitmq import SECTIONS
from broker.queues.arguments import EFFECTIVE_ARGUMENTS
from broker.queues.policies import EFFECTIVE_KEYS
from tests.clients import World
from tests.store.test_features import Lasting
from tests.top import rabbit_definitions
from tests.top.api_client import api, users
from tests.top.conftest import Start
from trellis import cli
from trellis.cli.doctor import diagnose
from trellis.server import definitions_files

#: Section -> the fields that identify an object in it.
NAMES = {
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "parameters": ("vhost", "component", "name"),
    "global_parameters": ("name",),
    "policies": ("vhost", "name"),
    "queues": ("vhost", "name"),
    "exchanges": ("vhost", "name"),
}


def key(section: str, row: dict[str, Any]) -> str:
    if section == "bindings":
        return repr(sorted(row.items(), key=str))
    return repr([row[field] for field in NAMES[section]])


def by_key(document: dict[str, Any], section: str) -> dict[str, Any]:
    return {key(section, row): row for row in document[section]}


def expected(document: dict[str, Any]) -> dict[str, Any]:
    """Return the expected export of an imported document.

    The export differs from the document in one point: the limits of a virtual host are in the
    section `vhosts`, not in `parameters` as in an export of RabbitMQ.
    """
    wanted = copy.deepcopy(document)
    limits = [row for row in wanted["parameters"] if row["component"] == "vhost-limits"]
    for row in limits:
        wanted["parameters"].remove(row)
        for vhost in wanted["vhosts"]:
            if vhost["name"] == row["vhost"]:
                vhost["limits"] = row["value"]
    return wanted


def imported(world: World, document: Any) -> Any:
    report = definitions_files.import_(world.broker, msgspec.json.encode(document))
    world.settle()
    return report


def exported(world: World) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(definitions_files.export(world.broker))
    return document


@pytest.mark.parametrize("seed", range(5))
def test_a_companys_definitions_come_out_as_they_went_in(seed: int) -> None:
    document = rabbit_definitions.document(seed)
    assert (len(document["policies"]), len(document["queues"])) == (40, 200)
    world = World()
    report = imported(world, document)
    assert report.refused == []
    out, wanted = exported(world), expected(document)
    for section in (*NAMES, "bindings"):
        assert by_key(out, section) == by_key(wanted, section), section
    # A policy key without an effect is kept, and the report names each such key.
    for at, policy in enumerate(document["policies"]):
        for name in policy["definition"]:
            named = any(
                f"policies[{at}] {policy['name']!r}: key '{name}' " in line for line in report.notes
            )
            assert named == (judge_policy_key(name, EFFECTIVE_KEYS).kind != EQUAL), name
    # Another import of the same document, or of its export, changes nothing.
    assert imported(world, document).refused == []
    assert imported(world, out).refused == []
    again = exported(world)
    for section in SECTIONS:
        assert again[section] == out[section], section


def test_imported_options_limits_and_parameters_survive_a_restart(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    imported(world, rabbit_definitions.document())
    before = exported(world)
    world.stop()
    again = Lasting(tmp_path)
    assert again.report.refused == []
    after = exported(again)
    for section in SECTIONS:
        assert sorted(map(repr, after[section])) == sorted(map(repr, before[section])), section
    shop = again.broker.vhosts["shop"]
    assert shop.options.limits == {"max-connections": 500, "max-queues": 1_000}
    assert int(shop.queues[next(iter(shop.queues))].arguments.max_length) <= 5_000
    again.stop()


def test_an_imported_vhost_keeps_the_options_that_the_document_does_not_name() -> None:
    world = World()
    first = {
        "name": "v",
        "metadata": {"description": "d", "tags": ["t"], "protected_from_deletion": True},
        "default_queue_type": "quorum",
        "limits": {"max-queues": 7},
    }
    [note] = imported(world, {"vhosts": [first]}).notes
    assert note.startswith("vhosts[0] 'v': default type 'quorum' makes ")
    before = exported(world)["vhosts"]
    [row] = [row for row in before if row["name"] == "v"]
    assert row["protected_from_deletion"] and row["limits"] == {"max-queues": 7}
    # Importing the export, or a document that names only some of the options, changes nothing.
    for again in (before, [{"name": "v"}], [{"name": "v", "description": "d"}]):
        assert imported(world, {"vhosts": again}).refused == []
        assert exported(world)["vhosts"] == before
    other = {"name": "v", "metadata": {"description": "e", "protected_from_deletion": False}}
    imported(world, {"vhosts": [other]})
    [row] = [row for row in exported(world)["vhosts"] if row["name"] == "v"]
    assert row["description"] == "e" and "protected_from_deletion" not in row
    assert row["limits"] == {"max-queues": 7} and row["default_queue_type"] == "quorum"


LOSSES: list[tuple[str, Any, str]] = [
    ("vhosts", {"name": "v", "tracing": True}, "amq.rabbitmq.trace"),
    ("vhosts", {"name": "v", "default_queue_type": "x-odd"}, "'default_queue_type' was left out"),
    ("vhosts", {"name": "v", "limits": {"max-x": 1}}, "'limits' was left out: vhost 'v': unknown"),
    ("vhosts", {"name": "v", "colour": "red"}, "unknown field 'colour'"),
    ("users", {"name": "u", "password_hash": "", "limits": {"max-x": 1}}, "limit 'max-x' was left"),
    (
        "parameters",
        {"vhost": "/", "component": "shovel", "name": "s", "value": {}},
        "AMQP 0-9-1 only",
    ),
    (
        "parameters",
        {"vhost": "/", "component": "other", "name": "s", "value": 1},
        "component 'other' has no effect",
    ),
    ("global_parameters", {"name": "cluster_tags", "value": {}}, "the parameter has no effect"),
    (
        "policies",
        {"vhost": "/", "name": "p", "pattern": "", "definition": {"ha-mode": "all"}},
        "key 'ha-mode' has no effect",
    ),
    (
        "policies",
        {"vhost": "/", "name": "p", "pattern": "", "definition": {"odd": 1, "expires": 9}},
        "key 'odd' was left out, because the key is unknown",
    ),
    (
        "policies",
        {"vhost": "/", "name": "p", "pattern": "", "definition": {"expires": "x", "max-length": 1}},
        "key 'expires' was left out: policy 'p'",
    ),
    (
        "queues",
        {"vhost": "/", "name": "q", "durable": True, "arguments": {"x-queue-mode": "lazy"}},
        "argument 'x-queue-mode' has no effect",
    ),
    (
        "queues",
        {"vhost": "/", "name": "q", "durable": True, "arguments": {"x-message-ttl": "1"}},
        "argument 'x-message-ttl' was left out: invalid arg",
    ),
    (
        "queues",
        {"vhost": "/", "name": "q", "durable": True, "arguments": {"x-queue-type": "x-odd"}},
        "argument 'x-queue-type' was left out",
    ),
    (
        "queues",
        {"vhost": "/", "name": "q", "durable": True, "type": "quorum", "arguments": {}},
        "type 'quorum' makes a queue durable",
    ),
    (
        "exchanges",
        {"vhost": "/", "name": "x", "type": "direct", "arguments": {"x-odd": 1}},
        "argument 'x-odd' is kept, and has no effect",
    ),
]


@pytest.mark.parametrize(("section", "row", "line"), LOSSES)
def test_import_reports_every_lost_part_of_an_object(section: str, row: Any, line: str) -> None:
    world = World()
    report = imported(world, {section: [row]})
    assert report.refused == []
    assert report.imported == {section: 1}
    (note,) = report.notes
    assert note.startswith(f"{section}[0] ") and line in note
    diagnosis = diagnose({section: [row]})
    (group,) = diagnosis.groups.values()
    assert group.kind in (DIFFERENT, MISSING)
    assert line in diagnosis.lines[0]


def test_a_delivery_limit_is_different_for_classic_queues_only() -> None:
    for kind, notes in (("classic", 1), ("quorum", 0)):
        arguments = {"x-delivery-limit": 3, "x-queue-type": kind}
        row = {"vhost": "/", "name": "q", "durable": True, "arguments": arguments}
        report = imported(World(), {"queues": [row]})
        assert sum("x-delivery-limit" in line for line in report.notes) == notes


def test_arguments_that_need_a_policy_come_out_as_they_went_in() -> None:
    definition = {"dead-letter-exchange": "amq.fanout", "delayed-retry-min": 5}
    policy = {"vhost": "/", "name": "p", "pattern": "^q$", "definition": definition}
    arguments = {"x-dead-letter-routing-key": "k", "x-delayed-retry-type": "all"}
    queue = {"vhost": "/", "name": "q", "durable": True, "arguments": arguments}
    world = World()
    assert imported(world, {"policies": [policy], "queues": [queue]}).refused == []
    assert world.queue("q").arguments.arguments == arguments
    world.vhost.applied_policies.clear_policy("p")
    world.settle()
    document = exported(world)
    report = imported(world, document)
    assert report.refused == []
    assert exported(world) == document


def test_a_policy_keeps_its_valid_keys() -> None:
    world = World()
    definition = {"ha-mode": "all", "max-length": 3, "expires": "x", "odd": 1}
    row = {"vhost": "/", "name": "p", "pattern": "q", "definition": definition}
    imported(world, {"policies": [row]})
    assert world.vhost.policies.by_name["p"].definition == {"ha-mode": "all", "max-length": 3}


def test_an_unknown_part_of_a_document_is_named() -> None:
    report = imported(World(), {"vhosts": [], "quirks": [1], "rabbit_version": "4.1.0"})
    assert report.notes == ["quirks: the section is unknown, and was left out"]


def test_an_mqtt_session_of_rabbitmqs_is_named() -> None:
    name = "mqtt-subscription-lampqos1"
    queue = {"vhost": "/", "name": name, "durable": True, "arguments": {}}
    binding = {
        "vhost": "/",
        "source": "amq.topic",
        "destination": name,
        "destination_type": "queue",
        "routing_key": "a.b",
        "arguments": {},
    }
    report = imported(World(), {"queues": [queue], "bindings": [binding]})
    assert ["belongs to an MQTT session" in line for line in report.refused] == [True, True]


def test_comparison_table_agrees_with_effective_keys() -> None:
    for name in EFFECTIVE_KEYS:
        assert judge_policy_key(name, EFFECTIVE_KEYS).kind != MISSING
    for name in EFFECTIVE_ARGUMENTS:
        assert judge_argument(name, EFFECTIVE_ARGUMENTS).kind != MISSING
    for name, verdict in POLICY_KEYS.items():
        assert (verdict.kind == MISSING) >= (name not in EFFECTIVE_KEYS), name
    for name, verdict in QUEUE_ARGUMENTS.items():
        assert (verdict.kind == MISSING) >= (name not in EFFECTIVE_ARGUMENTS), name
    for table in (POLICY_KEYS, QUEUE_ARGUMENTS, COMPONENTS):
        assert all(verdict.text for verdict in table.values() if verdict.kind != EQUAL)
    assert set(FIELDS) == set(SECTIONS)


@pytest.mark.parametrize(
    ("section", "row", "reason"),
    [
        ("policies", {"priority": "3"}, "'priority' is '3', not a whole number"),
        ("policies", {"priority": 1.5}, "'priority' is 1.5, not a whole number"),
        ("policies", {"priority": True}, "'priority' is True, not a whole number"),
        ("policies", {"apply-to": 5}, "'apply-to' is 5, not one of all"),
        ("operator_policies", {"apply-to": 5}, "'apply-to' is 5, not one of"),
        ("parameters", {"component": ""}, "the parameter has no component"),
    ],
)
def test_a_wrong_value_is_refused_and_not_replaced(
    section: str, row: dict[str, Any], reason: str
) -> None:
    world = World()
    whole = {"vhost": "/", "name": "p", "pattern": "x", "definition": {"max-length": 1}}
    report = imported(world, {section: [whole | {"component": "c", "value": 1} | row]})
    [line] = report.refused
    assert reason in line
    assert exported(world)[section] == []


# -- the command


def test_doctor_reports_equal_different_and_missing_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_bytes(msgspec.json.encode(rabbit_definitions.document() | {"quirks": [1]}))
    assert cli.main(["doctor", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "equal      permissions: 12 of 12" in lines
    assert any(line.startswith("different  queues (") and "type 'quorum'" in line for line in lines)
    assert any(line.startswith("missing    policies (") and "'ha-mode'" in line for line in lines)
    assert "missing    quirks: the section is unknown, and was left out" in lines
    assert cli.main(["doctor", str(file), "--all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    document = rabbit_definitions.document()
    for section in (*NAMES, "bindings"):
        for at in range(len(document[section])):
            assert any(f"  {section}[{at}] " in line for line in lines), (section, at)
    assert cli.main(["doctor", str(file), "--json"]) == 1
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert {row["result"] for row in rows} == {"different", "missing"}
    text = "quirks: the section is unknown, and was left out"
    assert rows[-1] == {"result": "missing", "text": text}
    assert cli.main(["doctor", str(file), "--all", "--json"]) == 1
    assert len(msgspec.json.decode(capsys.readouterr().out)) > len(rows)


def test_the_doctor_gives_the_place_of_an_object_without_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_bytes(b'{"queues": [{"name": "q", "vhost": "/", "durable": true}, 7]}')
    assert cli.main(["doctor", str(file), "--all", "--json"]) == 1
    named, unnamed = msgspec.json.decode(capsys.readouterr().out)
    assert (named["index"], named["name"]) == (0, "q")
    assert unnamed.keys() == {"result", "section", "index", "text"}
    assert (unnamed["result"], unnamed["section"], unnamed["index"]) == ("missing", "queues", 1)


def test_the_doctor_is_content_with_equal_definitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_bytes(b'{"vhosts": [{"name": "v"}]}')
    assert cli.main(["doctor", str(file)]) == 0
    assert capsys.readouterr().out.startswith("equal      vhosts: 1 of 1\n")


def test_the_doctor_prints_one_line_for_a_name_with_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "definitions.json"
    row = {"name": "red\x1b[31m\nequal      all", "tracing": True}
    file.write_bytes(msgspec.json.encode({"vhosts": [row], "odd\x1b\n": [1]}))
    for options in ([], ["--all"]):
        assert cli.main(["doctor", str(file), *options]) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out and "red\\x1b[31m\\nequal" in out
        assert len(out.splitlines()) == 3


def test_the_doctor_groups_objects_that_are_refused_for_the_same_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "definitions.json"
    arguments = {"x-queue-type": "quorum"}
    queue = {"vhost": "/", "durable": True, "auto_delete": True, "arguments": arguments}
    file.write_bytes(
        msgspec.json.encode({"queues": [queue | {"name": f"q{n}"} for n in range(20)]})
    )
    assert cli.main(["doctor", str(file)]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "missing" in line]
    assert "queues (20 of 20): not imported: invalid property 'auto-delete' for queue '...'" in line
    assert line.endswith(": q0, q1, q2, q3, q4 and 15 more")


MISSING_FIELDS = (
    "missing    %s: not imported: lacks the fields 'vhost', 'name', and has the unknown field 'nme'"
)


def test_the_doctor_names_the_missing_field_and_the_place_of_an_object_without_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text('{"queues": [{"nme": "x"}, {"name": "q"}]}')
    for options, lines in (
        (
            [],
            [
                MISSING_FIELDS % "queues (1 of 2)" + ": queues[0]",
                "missing    queues (1 of 2): not imported: lacks the field 'vhost': q",
            ],
        ),
        (
            ["--all"],
            [
                MISSING_FIELDS % "queues[0]",
                "missing    queues[1] 'q': not imported: lacks the field 'vhost'",
            ],
        ),
    ):
        assert cli.main(["doctor", str(file), *options]) == 1
        out = capsys.readouterr().out.splitlines()
        assert [line for line in out if line.startswith("missing")] == lines


def test_the_doctor_says_which_bindings_lack_their_queue_or_exchange_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "definitions.json"
    exchange = {"vhost": "v", "name": "sensors", "type": "topic", "durable": True}
    binding = {
        "vhost": "v",
        "source": "sensors",
        "destination": "my orders",
        "destination_type": "queue",
        "arguments": {},
    }
    keys = [binding | {"routing_key": key} for key in ("a.b", "a.c")]
    other = binding | {"source": "gone", "destination_type": "exchange", "routing_key": ""}
    document: dict[str, Any] = {
        "vhosts": [{"name": "v"}],
        "exchanges": [exchange],
        "bindings": [*keys, other | {"destination": "sensors"}],
    }
    file.write_bytes(msgspec.json.encode(document))
    queue = "trellis queues declare 'my orders' --vhost v"
    add_queue = (
        f"add or correct queue 'my orders' in the file, or declare it before the import: {queue}"
    )
    add_exchange = (
        "add or correct exchange 'gone' in the file, or declare it before the import: trellis "
        "exchanges declare gone --type TYPE --vhost v"
    )
    names = "sensors -> my orders (key a.b), sensors -> my orders (key a.c)"
    named = "gone -> sensors"  # The key is empty.
    assert cli.main(["doctor", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "equal      vhosts: 1 of 1",
        "equal      exchanges: 1 of 1",
        f"missing    bindings (2 of 3): not imported: no queue 'my orders' in vhost 'v': {names}",
        f"  next: {add_queue}",
        f"missing    bindings (1 of 3): not imported: no exchange 'gone' in vhost 'v': {named}",
        f"  next: {add_exchange}",
    ]
    assert cli.main(["doctor", str(file), "--all"]) == 1
    assert capsys.readouterr().out.splitlines()[2:4] == [
        f"missing    bindings[{at}] 'sensors -> my orders (key {key})': not imported: no queue 'my "
        f"orders' in vhost 'v'; next: {add_queue}"
        for at, key in enumerate(("a.b", "a.c"))
    ]
    assert cli.main(["doctor", str(file), "--json"]) == 1
    first, *_ = rows = msgspec.json.decode(capsys.readouterr().out)
    assert first == {
        "result": "missing",
        "section": "bindings",
        "index": 0,
        "name": "sensors -> my orders (key a.b)",
        "text": "not imported: no queue 'my orders' in vhost 'v'",
        "next": queue,
    }
    for row in rows:
        words = shlex.split(row["next"])
        assert cli.parser(words[1]).parse(words[1:]).command == words[1]
    # An operator who follows the advice has no missing bindings.
    document["queues"] = [{"vhost": "v", "name": "my orders", "durable": True, "arguments": {}}]
    document["exchanges"].append(exchange | {"name": "gone"})
    file.write_bytes(msgspec.json.encode(document))
    assert cli.main(["doctor", str(file)]) == 0


def test_doctor_accepts_objects_that_only_concern_a_rabbitmq_cluster(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    names = ("internal_cluster_id", "imported_definition_hash_value")
    document = {"global_parameters": [{"name": name, "value": "x"} for name in names]}
    file.write_bytes(msgspec.json.encode(document))
    assert cli.main(["doctor", str(file)]) == 0


@pytest.mark.parametrize("data", [b"", b"[]", b"{"])
def test_doctor_refuses_data_that_is_no_definitions_document(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_bytes(data)
    assert cli.main(["doctor", str(file)]) == 2
    assert capsys.readouterr().err.startswith("trellis: ")
    assert cli.main(["doctor", str(tmp_path / "none")]) == 2


# -- over HTTP


async def test_dry_run_prints_the_report_of_an_import_and_changes_nothing(start: Start) -> None:
    broker = await start(**users())
    client = await broker.amqp()
    await client.queue("app.queue.0", durable=True)
    await client.call(
        spec.Exchange.Declare(exchange="known", exchange_type="fanout", durable=True),
        spec.Exchange.DeclareOk,
    )
    document = rabbit_definitions.document()
    binding = {
        "source": "known",
        "vhost": "/",
        "destination": "app.queue.0",
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {},
    }
    conflict = {
        "vhost": "/",
        "name": "app.queue.0",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-max-length": 1},
    }
    document["queues"] = [*document["queues"], conflict]
    document["bindings"] = [binding, *document["bindings"]]
    before = (await api(broker, "GET", "definitions"))[1]
    status, dry = await api(broker, "POST", "definitions?dry_run=true", document)
    assert status == 200
    assert (await api(broker, "GET", "definitions"))[1] == before
    assert any("app.queue.0" in line and "inequivalent" in line for line in dry["refused"])
    status, wet = await api(broker, "POST", "definitions", document)
    assert status == 200
    assert {**wet, "changes": [], "more_changes": 0} == dry
