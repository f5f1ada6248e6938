"""Tests of the management API with rabbitmqadmin 2, RabbitMQ's newer command-line tool (Rust)."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pika
import pytest

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build

pytestmark = pytest.mark.long

VERSION: Final = "2.35.0"
#: Groups of commands that Trellis cannot serve, with the reason.
MISSING: Final = {
    "shovels": "no shovels yet",
    "federation": "no federation yet",
    "tanzu": "a commercial product",
    "config_file": "a file of the tool itself",
    "shell": "completion of the tool itself",
}
#: Commands, each after the commands that make the objects it needs. `{file}` is a path.
COMMANDS: Final = """
show overview
show churn
show endpoint
show memory_breakdown_in_bytes --node trellis
show memory_breakdown_in_percent --node trellis
declare vhost --name v2
declare user --name u2 --password secret --tags monitoring
declare permissions --user u2 --configure .* --read .* --write .*
--vhost v2 declare permissions --user u2 --configure .* --read .* --write .*
declare queue --name q2 --type classic --durable true
declare queue --name qq --type quorum
declare queue --name qa --type classic --arguments '{"x-max-length": 5}'
declare stream --name s2 --expiration 1h
declare exchange --name x2 --type topic
declare binding --source x2 --destination q2 --destination-type queue --routing-key a.#
declare parameter --component federation-upstream --name up2 --value '{"uri":"amqp://x"}'
declare policy --name p2 --pattern ^q --definition '{"max-length": 10}' --apply-to queues
declare operator_policy --name op2 --pattern ^q --definition '{"max-length": 99}' --apply-to queues
declare vhost_limit --name max-queues --value 100
declare user_limit --user u2 --name max-connections --value 10
list nodes
list users
list vhosts
list permissions
list connections
list user_connections --username guest
list channels
list queues
list exchanges
list bindings
list consumers
list parameters
list parameters --component federation-upstream
list policies
list operator_policies
list vhost_limits
list user_limits
list feature_flags
list deprecated_features
list deprecated_features_in_use
publish message --routing-key q2 --payload hello
publish message --exchange x2 --routing-key a.b --payload hello --properties '{"delivery_mode": 2}'
get messages --queue q2 --count 1 --ack-mode ack_requeue_true
get messages --queue q2
purge queue --name q2
health_check local_alarms
health_check cluster_wide_alarms
health_check node_is_quorum_critical
health_check port_listener --port {port}
health_check protocol_listener --protocol amqp
definitions export --file {file}
definitions export_from_vhost --file {file}.vhost
definitions import --file {file}
definitions import_into_vhost --file {file}.vhost
rebalance queues
feature_flags list
deprecated_features list
plugins list_all
plugins list_on_node --node trellis
queues show --name q2
queues list
queues purge --name q2
streams list
users connections --username guest
users permissions
users limits
users list
permissions list
vhosts list
vhosts enable_deletion_protection --name v2
vhosts disable_deletion_protection --name v2
global_parameters set --name g2 --value '{"a":1}'
global_parameters list
global_parameters clear --name g2
policies list
policies list_in
policies list_conflicting
policies list_matching_object --name q2 --type queue
policies patch --name p2 --definition '{"max-length": 20}'
policies update_definition --name p2 --definition-key max-length --new-value 15
operator_policies list
vhost_limits list
user_limits list
parameters list_all
parameters list_in --component federation-upstream
passwords salt_and_hash secret
auth_attempts stats --node trellis
nodes list
nodes memory_breakdown_in_bytes --node trellis
nodes memory_breakdown_in_percent --node trellis
channels list
connections list
bindings list
exchanges list
close user_connections --username guest
delete vhost_limit --name max-queues
delete user_limit --user u2 --name max-connections
delete parameter --component federation-upstream --name up2
delete policy --name p2
delete operator_policy --name op2
delete binding --source x2 --destination q2 --destination-type queue --routing-key a.#
delete exchange --name x2
delete stream --name s2
delete queue --name q2
delete queue --name qq
queues delete_multiple --name-pattern ^qa --approve
delete permissions --user u2
delete user --name u2
delete vhost --name v2
"""


def test_rabbitmqadmin_2_runs_its_commands(broker: BrokerProcess, tmp_path: Path) -> None:
    root = BUILT / "rabbitmqadmin2"
    build(
        [
            *(require("cargo"), "install", "-q", "--locked", "--root", str(root)),
            *("rabbitmqadmin", "--version", VERSION),
        ],
        BUILT.parent,
    )
    host, port = broker.addresses["http"]
    base = [str(root / "bin" / "rabbitmqadmin"), "-H", host, "-P", str(port)]
    base += ["-u", "guest", "-p", "guest"]

    def run(line: str) -> str:
        done = subprocess.run(
            [*base, *shlex.split(line)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout} {done.stderr}"
        return done.stdout

    client = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = client.channel()
    channel.queue_declare("of-a-client", exclusive=True)
    channel.basic_consume("of-a-client", lambda *_: None, consumer_tag="its-tag")
    file = tmp_path / "definitions.json"
    answers = {}
    for line in COMMANDS.strip().splitlines():
        line = line.replace("{port}", str(broker.addresses["amqp"][1]))
        answers[line] = run(line.replace("{file}", str(file)))
    assert "q2" in answers["list queues"] and "x2" in answers["list exchanges"]
    assert "hello" in answers["get messages --queue q2"]
    assert "its-tag" in answers["list consumers"]
    assert "max-length" in answers["list policies"] and "u2" in answers["list users"]
    assert {"q2", "qq", "s2"} <= {row["name"] for row in json.loads(file.read_text())["queues"]}
    assert "v2" not in run("list vhosts") and "qa" not in run("list queues")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        client.sleep(10)
    # Each group of commands that its help lists is run, or named with a reason.
    listed = run("help").partition("Commands:\n")[2].partition("\n\n")[0].split("\n  ")
    groups = {line.split()[0] for line in listed} - {"help", "export", "import"}
    assert groups == {line.split()[0] for line in answers if line[0] != "-"} | set(MISSING)
