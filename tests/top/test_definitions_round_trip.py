"""Definitions with any names and options survive an import, a restart and an export unchanged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.definitions.rabbitmq import SECTIONS
from tests.clients import World
from tests.store.test_features import Lasting
from trellis.server import definitions_files

#: Names with characters that have a special meaning in URLs, patterns, JSON, SQL and terminals.
NAMES = st.one_of(
    st.sampled_from(["a b", "%2F", "a/b", "..", "?x=1", "#", '"', "'", "\n", "\x7f", "\\", "{id}"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: (
            len(name.encode()) < 200 and not name.startswith(("amq.", "mqtt-subscription-"))
        )
    ),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, 1 << 31)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
PATTERNS = st.sampled_from(["", ".*", "^a", "b$", "^[[:alpha:]]+$", r"^(?!amq\.).*"])
KEYS = st.fixed_dictionaries(
    {"max-length": NUMBERS}, optional={"message-ttl": NUMBERS, "expires": st.integers(1, 1 << 31)}
)
TOPICS = st.fixed_dictionaries({"write": PATTERNS, "read": PATTERNS, "exchange": NAMES})


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return a document whose objects are valid, in the form of an export."""
    names = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    if names[0] == "/":  # `exported` leaves this virtual host out.
        names.reverse()
    one, other = names[0], names[1]
    metadata: dict[str, Any] = {
        "description": draw(TEXTS),
        "tags": draw(st.lists(TEXTS.filter(bool), max_size=2)),
    }
    kind = draw(st.sampled_from(["", "classic", "quorum", "stream"]))
    if kind:
        metadata["default_queue_type"] = kind
    if draw(st.booleans()):
        metadata["protected_from_deletion"] = True
    of_vhost = {"vhost": one}
    user_limits = st.dictionaries(st.sampled_from(["max-connections", "max-channels"]), NUMBERS)
    topics = draw(TOPICS)
    policy = {"pattern": draw(PATTERNS), "priority": draw(st.integers(-9, 9))}
    queues = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    empty: dict[str, Any] = {name: [] for name in SECTIONS}
    return empty | {
        "vhosts": [
            {
                "name": one,
                **metadata,
                "metadata": metadata,
                "limits": {"max-connections": draw(NUMBERS)},
            }
        ],
        "users": [
            {
                "name": name,
                "password_hash": "",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": draw(st.lists(st.sampled_from(["monitoring", "own"]), unique=True)),
                "limits": draw(user_limits),
            }
            for name in names
        ],
        "permissions": [
            {
                "user": one,
                **of_vhost,
                "configure": draw(PATTERNS),
                "write": draw(PATTERNS),
                "read": draw(PATTERNS),
            }
        ],
        "topic_permissions": [{"user": other, **of_vhost, **topics}],
        "topic_rules": [{"user": one, **of_vhost, "rules": ["deny all a/#", "allow all #"]}],
        "parameters": [
            {**of_vhost, "component": "component", "name": name, "value": draw(VALUES)}
            for name in names
        ]
        + [
            {
                **of_vhost,
                "component": "operator_policy",
                "name": other,
                "value": {**policy, "apply-to": "queues", "definition": draw(KEYS)},
            }
        ],
        "global_parameters": [{"name": other, "value": draw(VALUES)}],
        "policies": [
            {**of_vhost, "name": one, **policy, "apply-to": "all", "definition": draw(KEYS)}
        ],
        "exchanges": [
            {
                "name": name,
                **of_vhost,
                "type": draw(st.sampled_from(["direct", "topic", "fanout", "headers"])),
                "durable": True,
                "auto_delete": False,
                "internal": draw(st.booleans()),
                "arguments": {},
            }
            for name in names
        ],
        "queues": [
            {
                "name": name,
                **of_vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": draw(
                    st.sampled_from([{}, {"x-max-length": 5}, {"x-queue-type": "quorum"}])
                ),
            }
            for name in queues
        ],
        "bindings": [
            {
                "source": one,
                **of_vhost,
                "destination": queues[0],
                "destination_type": "queue",
                "routing_key": draw(NAMES),
                "arguments": {},
            },
            {
                "source": one,
                **of_vhost,
                "destination": other,
                "destination_type": "exchange",
                "routing_key": draw(NAMES),
                "arguments": {},
            },
        ],
    }


def exported(world: World | Lasting) -> dict[str, list[Any]]:
    """Return the sections of an export, without the virtual host that every broker has."""
    document = msgspec.json.decode(definitions_files.export(world.broker))
    document["vhosts"] = [row for row in document["vhosts"] if row["name"] != "/"]
    return {section: sorted(document[section], key=repr) for section in SECTIONS}


def imported(world: World | Lasting, document: Any) -> None:
    report = definitions_files.import_(world.broker, msgspec.json.encode(document))
    world.settle()
    assert report.refused == []


@settings(max_examples=60, deadline=None)
@given(documents())
def test_definitions_come_out_as_they_went_in(document: dict[str, Any]) -> None:
    wanted = {section: sorted(document[section], key=repr) for section in SECTIONS}
    with tempfile.TemporaryDirectory() as folder:
        first = Lasting(Path(folder))
        imported(first, document)
        assert exported(first) == wanted
        first.stop()
        again = Lasting(Path(folder))
        assert again.report.refused == []
        out = exported(again)
        assert out == wanted
        imported(again, out)
        assert exported(again) == wanted
        again.stop()
    other = World()
    imported(other, out)
    assert exported(other) == wanted
