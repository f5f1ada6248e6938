"""Tests of the management API with clients of RabbitMQ's API: rabbitmqadmin and Flower."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pika
import pytest
from flower.utils.broker import RabbitMQ

from tests.broker import BrokerProcess
from tests.foreign import require


class Admin:
    """rabbitmqadmin, version 1, for one broker.

    The program is a Python script. The tests run it in their own process: they run 55 commands,
    each of which would need 0.1 s of CPU time to start a process.
    """

    def __init__(self, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        program = require("rabbitmqadmin")
        self._code = compile(Path(program).read_bytes(), program, "exec")
        host, port = broker.addresses["http"]
        self._words = [program, "-H", str(host), "-P", str(port)]
        self._monkeypatch = monkeypatch
        #: The commands that the test has run, such as `list queues` and `export`.
        self.commands: set[str] = set()

    def __call__(self, *words: str) -> str:
        """Run a command of rabbitmqadmin, and return its output."""
        self._monkeypatch.setattr(sys, "argv", [*self._words, *words])
        out, code = io.StringIO(), None
        handler = signal.getsignal(signal.SIGPIPE)
        with redirect_stdout(out), redirect_stderr(out):
            try:
                exec(self._code, {"__name__": "__main__"})
            except SystemExit as end:
                code = end.code
            finally:
                # The program lets SIGPIPE end its process. In this process, later tests write to
                # sockets whose other end is closed.
                signal.signal(signal.SIGPIPE, handler)
        assert not code, (words, code, out.getvalue())
        verb, *rest = words[2:] if words[0] == "-f" else words
        self.commands.add(f"{verb} {rest[0]}" if verb in WITH_KIND else verb)
        return out.getvalue()

    def known_commands(self) -> set[str]:
        """Return the commands that the program's help lists."""
        kinds = "|".join(WITH_KIND)
        text = self("help", "subcommands").partition("subcommand is one of")[2]
        self.commands.discard("help")
        return set(re.findall(rf"^  ((?:{kinds}) \w+|\w+)", text, re.MULTILINE))


#: Commands whose next word is a kind of object.
WITH_KIND = ("list", "show", "declare", "delete", "close", "purge")


@pytest.fixture
def admin(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Admin:
    return Admin(broker, monkeypatch)


def test_rabbitmqadmin_runs_all_its_commands(
    admin: Admin, broker: BrokerProcess, tmp_path: Path
) -> None:
    declare_list_and_delete(admin, tmp_path)
    publish_get_and_set_limits(admin, tmp_path)
    close_connection(admin, broker)
    assert admin.known_commands() == admin.commands and len(admin.commands) == 41


def declare_list_and_delete(admin: Admin, tmp_path: Path) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = json.loads(admin("-f", "raw_json", "list", *words))
        return objects

    admin("declare", "exchange", "name=rx", "type=topic")
    admin("declare", "queue", "name=rq", "durable=true", 'arguments={"x-max-length": 9}')
    admin("declare", "binding", "source=rx", "destination=rq", "routing_key=a.#")
    admin(
        "declare",
        "policy",
        "name=rp",
        "pattern=^rq",
        'definition={"message-ttl": 1000}',
        "apply-to=queues",
    )
    admin("declare", "vhost", "name=rv")
    admin("declare", "user", "name=ru", "password=secret", "tags=monitoring")
    admin("declare", "permission", "vhost=rv", "user=ru", "configure=.*", "write=.*", "read=.*")
    (queue,) = [row for row in rows("queues") if row["name"] == "rq"]
    assert (queue["arguments"], queue["policy"]) == ({"x-max-length": 9}, "rp")
    assert [row["type"] for row in rows("exchanges") if row["name"] == "rx"] == ["topic"]
    (binding,) = [row for row in rows("bindings") if row["source"] == "rx"]
    assert (
        "ru" in admin("list", "users")
        and "rv" in admin("list", "vhosts")
        and "ru" in admin("list", "permissions")
    )
    assert (
        "1000" in admin("list", "policies")
        and "trellis" in admin("list", "nodes")
        and "trellis" in admin("show", "overview")
    )
    for kind in ("connections", "channels", "consumers", "parameters"):
        admin("list", kind)
    file = tmp_path / "definitions.json"
    admin("export", str(file))
    assert {"rq", "rp", "rv"} <= {
        row["name"]
        for rows in json.loads(file.read_text()).values()
        if isinstance(rows, list)
        for row in rows
        if "name" in row
    }
    admin("import", str(file))
    admin("purge", "queue", "name=rq")
    admin(
        "delete",
        "binding",
        "source=rx",
        "destination_type=queue",
        "destination=rq",
        f"properties_key={binding['properties_key']}",
    )
    admin("delete", "queue", "name=rq")
    admin("delete", "exchange", "name=rx")
    admin("delete", "policy", "name=rp")
    admin("delete", "permission", "vhost=rv", "user=ru")
    assert "ru" not in admin("list", "permissions")
    admin("delete", "user", "name=ru")
    admin("delete", "vhost", "name=rv")
    assert "rq" not in admin("list", "queues") and "rv" not in admin("list", "vhosts")


def publish_get_and_set_limits(admin: Admin, tmp_path: Path) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = json.loads(admin("-f", "raw_json", *words))
        return objects

    admin("declare", "queue", "name=gq", "queue_type=quorum")
    words = ("publish", "routing_key=gq", "payload=hello", 'properties={"delivery_mode": 2}')
    assert "Message published" in admin(*words)
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=lost")
    (message,) = rows("get", "queue=gq", "ackmode=ack_requeue_true")
    assert (message["payload"], message["properties"]) == ("hello", {"delivery_mode": 2})
    file = tmp_path / "payload"
    admin("get", "queue=gq", "ackmode=ack_requeue_false", f"payload_file={file}")
    assert file.read_text() == "hello"
    assert "No items" in admin("get", "queue=gq")
    (queue,) = [row for row in rows("list", "queues") if row["name"] == "gq"]
    assert (queue["type"], queue["message_stats"]["get"]) == ("quorum", 2)
    bounds = ("name=gp", "pattern=^gq", 'definition={"max-length": 3}', "apply-to=queues")
    admin("declare", "operator_policy", *bounds)
    admin("declare", "vhost_limit", "vhost=/", "name=max-queues", "value=100")
    value = 'value={"uri": "amqp://west"}'
    admin("declare", "parameter", "component=federation-upstream", "name=gw", value)
    (policy,) = rows("list", "operator_policies")
    assert policy["definition"] == {"max-length": 3}
    assert rows("list", "vhost_limits") == [{"vhost": "/", "value": {"max-queues": 100}}]
    (parameter,) = rows("list", "parameters")
    assert (parameter["name"], parameter["value"]) == ("gw", {"uri": "amqp://west"})
    admin("delete", "parameter", "component=federation-upstream", "name=gw")
    admin("delete", "vhost_limit", "vhost=/", "name=max-queues")
    admin("delete", "operator_policy", "name=gp")
    admin("delete", "queue", "name=gq")
    for kind in ("parameters", "vhost_limits", "operator_policies"):
        assert "No items" in admin("list", kind)


def close_connection(admin: Admin, broker: BrokerProcess) -> None:
    client = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    (row,) = json.loads(admin("-f", "raw_json", "list", "connections"))
    assert (row["user"], row["protocol"], row["client_properties"]["product"]) == (
        "guest",
        "AMQP 0-9-1",
        "Pika Python Client Library",
    )
    admin("close", "connection", f"name={row['name']}")
    assert "No items" in admin("list", "connections")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="closed by an operator"):
        client.sleep(10)


def test_flower_reads_queues(broker: BrokerProcess, admin: Admin) -> None:
    host, port = broker.addresses["http"]
    admin("declare", "queue", "name=celery")
    client = RabbitMQ(
        broker.amqp_url.removesuffix("%2F") + "/", f"http://guest:guest@{host}:{port}/api/"
    )
    queues = asyncio.run(client.queues(["celery"]))
    assert [(one["name"], one["messages"], one["consumers"]) for one in queues] == [
        ("celery", 0, 0)
    ]
    admin("delete", "queue", "name=celery")
