"""Compares the pipeline with a real broker about sessions that do not receive every matching
message: No Local, and topics that the session's user may not read.

The broker writes a journal with the number of sessions that each message reached, and `$topology`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from pyspark_trellis.arrow_feed import JournalFeed
from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.counts import KEYS
from pyspark_trellis.job_bindings import read_bindings
from pyspark_trellis.journal import Directory
from pyspark_trellis.read_scope import ReadScope, scope_of
from pyspark_trellis.routing import BatchRouters
from pyspark_trellis.topology import replay
from tests.streams.tables import durable_bytes_of, stream
from tests.streams.test_journal import journaled
from tests.wire.mqtt.test_identifiers import AccountsWorld
from tests.wire.mqtt5.client import Client5, publish, subscription
from trellis.cli import parser

RULES = ("deny subscribe secret/{client_id}/#", "deny subscribe +/hidden", "allow all #")
TOPICS = ("news/a", "news/hidden", "secret/one/x", "secret/two/x", "other")


def written(world: AccountsWorld, path: Path) -> None:
    """Write the segments of the journal and of `$topology` as the broker does."""
    for name, directory in (("j", "journal"), ("$topology", "%24topology")):
        (path / directory).mkdir(exist_ok=True)
        for number, data in enumerate(durable_bytes_of(stream(world.broker, name))):
            assert number == 0
            (path / directory / f"{1:010d}-{0:020d}.arrow").write_bytes(data)


def expected_and_found(path: Path) -> tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], int]]:
    """Return two dicts (topic, publisher) -> number of deliveries to sessions.

    The first dict has the numbers in the broker's journal, the second those that the pipeline
    computes.
    """
    arguments = ["pipeline", "audit", "--journal", str(path / "journal")]
    about = read_bindings(parser().parse(arguments))
    assert about.then is not None
    sums = JournalFeed({"path": str(path / "journal")}, KEYS).sums(about.splits)
    table = ArrowTopics(sums).table
    table = table.filter(pc.equal(table.column("exchange"), "amq.topic"))
    counts = [0] * table.num_rows
    messages = table.column("messages").to_pylist()
    for group in BatchRouters(about.then.hosts).groups(table):
        for index in group.routed.receivers[0].tolist():
            counts[group.rows[index]] += messages[group.rows[index]]
    keys = list(
        zip(*(table.column(name).to_pylist() for name in ("topic", "publisher")), strict=True)
    )
    journal = dict(zip(keys, table.column("fanout").to_pylist(), strict=True))
    return journal, dict(zip(keys, counts, strict=True))


def test_sessions_receive_what_the_broker_gave_them(tmp_path: Path) -> None:
    world = AccountsWorld()
    for name in ("ann", "bob"):
        world.accounts.add(name, *RULES)
    journaled(world)
    one, two, plain = (
        Client5(world, identifier, username=user, password=b"guest")
        for identifier, user in (("one", "ann"), ("two", "bob"), ("plain", "ann"))
    )
    assert one.subscribe(subscription("#", 0))[0] == [0]
    assert two.subscribe(subscription("news/#", 0, no_local=True), subscription("secret/#", 0))[
        0
    ] == [0, 0]
    for number in range(2):
        for client in (one, two, plain):
            for topic in TOPICS[: 3 + number]:
                client.send(publish(topic, b"x"))
    written(world, tmp_path)
    journal, routed = expected_and_found(tmp_path)
    assert journal == routed
    assert journal["news.a", "bob"] < journal["news.a", ""], "bob's session gets no own messages"
    assert journal["secret.one.x", "bob"] > 0, "only the session 'two' gets them"


def test_changed_rules_are_recorded(tmp_path: Path) -> None:
    world = AccountsWorld()
    world.accounts.add("ann", *RULES)
    journaled(world)
    client = Client5(world, "one", username="ann", password=b"guest")
    client.subscribe(subscription("#", 0), subscription("news/#", 0, no_local=True))
    world.accounts.users.set_rules("/", "ann", ["deny subscribe other", *RULES])
    world.mqtt_front.reauthorize()
    world.settle()
    written(world, tmp_path)
    state = replay(Directory(str(tmp_path / "%24topology")))
    scopes = {facts["routing_key"]: scope_of(facts) for facts in state.subscriptions()}
    rules = (
        (False, "other"),
        (False, "secret/one/#"),
        (False, "+/hidden"),
        (True, "#"),
    )
    assert scopes == {"#": ReadScope(None, rules), "news/#": ReadScope("ann", rules)}
