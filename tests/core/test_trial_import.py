"""A trial import reports what the import of the same document into the same broker reports."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.broker import Broker
from broker.definitions.changes import NOUNS, change_of, label_of, state_of
from broker.definitions.rabbitmq import REFUSED, Import, rows_of
from broker.definitions.trial import TrialImport
from broker.limits import BrokerLimits
from tests.clients import World

Document = dict[str, list[dict[str, Any]]]

VHOSTS: Final = st.sampled_from(["/", "v", "w"])
USERS: Final = st.sampled_from(["ann", "bob"])
QUEUES: Final = st.sampled_from(["q0", "q1", "q2", "q3"])
EXCHANGES: Final = st.sampled_from(["x0", "x1", "amq.topic"])
LIMITS: Final = st.fixed_dictionaries({}, optional={"max-queues": st.integers(0, 3)})
PATTERNS: Final = st.sampled_from(["", "^q", "("])
ARGUMENTS: Final = st.fixed_dictionaries(
    {},
    optional={
        "x-queue-type": st.sampled_from(["classic", "quorum", "stream", "none"]),
        "x-dead-letter-routing-key": st.just("k"),
        "x-max-length": st.sampled_from([1, 2, "many"]),
        "x-single-active-consumer": st.booleans(),
        "x-max-priority": st.just(5),
    },
)
POLICY: Final = st.fixed_dictionaries(
    {"pattern": PATTERNS, "apply-to": st.sampled_from(["queues", "all", "streams"])},
    optional={"priority": st.integers(0, 2)},
)
KEYS: Final = st.fixed_dictionaries(
    {},
    optional={
        "dead-letter-exchange": st.just("x0"),
        "max-length": st.integers(-1, 3),
        "ha-mode": st.just("all"),
        "unknown": st.just(1),
    },
)


def rows(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy for a list of up to three objects with these fields."""
    return st.lists(st.fixed_dictionaries(fields), max_size=3)


DOCUMENTS: Final[st.SearchStrategy[Document]] = st.fixed_dictionaries(
    {},
    optional={
        "vhosts": rows(name=VHOSTS, description=st.sampled_from(["", "d"]))
        | rows(name=VHOSTS, limits=LIMITS),
        "roles": rows(
            name=st.just("r"),
            vhosts=st.dictionaries(
                VHOSTS, st.just({"configure": "", "write": "", "read": "", "rules": []})
            ),
        ),
        "users": rows(name=USERS, password_hash=st.just(""), tags=st.just([]))
        | rows(name=USERS, password_hash=st.just(""), role=st.sampled_from(["r", ""])),
        "permissions": rows(
            vhost=VHOSTS, user=USERS, configure=PATTERNS, write=st.just(""), read=st.just("")
        ),
        "topic_rules": rows(
            vhost=VHOSTS,
            user=USERS,
            rules=st.sampled_from([[], ["allow all a/#"], ["allow all {user}"]]),
        ),
        "parameters": rows(
            vhost=VHOSTS, component=st.just("vhost-limits"), name=st.just("limits"), value=LIMITS
        ),
        "operator_policies": rows(
            vhost=VHOSTS, name=st.just("o"), pattern=PATTERNS, definition=KEYS
        ),
        "policies": st.lists(
            st.builds(
                lambda policy, vhost, keys: {
                    **policy,
                    "vhost": vhost,
                    "name": "p",
                    "definition": keys,
                },
                POLICY,
                VHOSTS,
                KEYS,
            ),
            max_size=2,
        ),
        "exchanges": rows(
            vhost=VHOSTS,
            name=EXCHANGES,
            type=st.sampled_from(["topic", "fanout", "none"]),
            durable=st.booleans(),
        ),
        "queues": rows(
            vhost=VHOSTS,
            name=QUEUES,
            durable=st.booleans(),
            auto_delete=st.just(False),
            arguments=ARGUMENTS,
        ),
        "bindings": rows(
            vhost=VHOSTS,
            source=EXCHANGES,
            destination=QUEUES | EXCHANGES,
            destination_type=st.sampled_from(["queue", "exchange"]),
            routing_key=st.just("k"),
        ),
    },
)
#: A queue whose argument needs a policy.
DEAD_LETTERS: Final[Document] = {
    "policies": [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "",
            "definition": {"dead-letter-exchange": "x0"},
        }
    ]
}
NEEDS_POLICY: Final[Document] = {
    "queues": [
        {
            "vhost": "/",
            "name": "q0",
            "durable": True,
            "arguments": {"x-dead-letter-routing-key": "k"},
        }
    ]
}
FULL: Final[Document] = {
    "vhosts": [{"name": "v", "limits": {"max-queues": 1}}],
    "queues": [{"vhost": "v", "name": "q0", "durable": True, "arguments": {}}],
}
MORE: Final[Document] = {
    "queues": [{"vhost": "v", "name": "q1", "durable": True, "arguments": {}}],
    "bindings": [
        {
            "vhost": "v",
            "source": "amq.topic",
            "destination": "q0",
            "destination_type": "queue",
            "routing_key": "k",
        }
    ],
}


def check_hash(password_hash: str, algorithm: str) -> str:
    return password_hash


def report(run: Import | TrialImport, document: Document) -> tuple[Any, Any, Any]:
    for section, row in rows_of(document):
        run.take(section, row)
    return run.report.imported, run.report.refused, run.report.notes


def changed(broker: Broker) -> Any:
    """Return the names of all objects of a broker, to see that a trial changes none."""
    return [
        (vhost.name, vhost.options.row, sorted(vhost.queues), sorted(vhost.exchanges))
        for vhost in broker.vhosts.values()
    ], [(user.name, user.permissions, user.rules) for user in broker.users.by_name.values()]


def changes_of(broker: Broker, run: Import, document: Document) -> dict[str, str]:
    """Import a document, and return the changes of the objects that existed before, by label."""
    changes: dict[str, str] = {}
    before = {
        label_of(section, row): state_of(broker, section, row)
        for section, row in rows_of(document)
        if section in NOUNS and isinstance(row, dict)
    }
    for section, row in rows_of(document):
        refused = any(finding.kind == REFUSED for finding in run.take(section, row))
        if refused or section not in NOUNS or not isinstance(row, dict):
            continue
        label = label_of(section, row)
        change = change_of(section, row, before[label], state_of(broker, section, row))
        if change is not None:
            changes[label] = change.text
        else:
            changes.pop(label, None)
    return changes


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=3), DOCUMENTS)
@example([DEAD_LETTERS], NEEDS_POLICY)
@example([DEAD_LETTERS | NEEDS_POLICY], NEEDS_POLICY)
@example([DEAD_LETTERS | NEEDS_POLICY], MORE | {"queues": NEEDS_POLICY["queues"]})
@example([FULL], MORE)
@example([FULL], FULL)
@example([FULL], MORE | {"vhosts": [{"name": "v", "description": "d"}]})
def test_a_trial_reports_what_the_import_reports(
    before: list[Document], document: Document
) -> None:
    limits = BrokerLimits()
    limits.queues, limits.exchanges = 3, 8
    world = World(limits)
    for earlier in before:
        report(Import(world.broker, check_hash), earlier)
        world.settle()
    unchanged = changed(world.broker)
    run = TrialImport(check_hash, world.broker)
    trial = report(run, document)
    assert changed(world.broker) == unchanged
    announced = {label: change.text for label, change in run.changes.items()}
    real = Import(world.broker, check_hash)
    assert changes_of(world.broker, real, document) == announced
    assert (real.report.imported, real.report.refused, real.report.notes) == trial
