"""`trellis cluster`: commands for a broker on several nodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trellis.cli import cluster_adopt, cluster_demo
from trellis.cli.actions import add_json, add_result, ask, print_json, print_result, show
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.cluster_log import cluster_settings, failure
from trellis.cli.confirming import add_yes, confirm_losses
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
)
from trellis.cli.readable import count_text
from trellis.cli.store import copy_directory, data_directory
from trellis.server.offline_audit import OfflineAudit
from trellis.settings.cluster import ClusterSettings

_CHECK = "list the settings of the Kafka cluster and of its topic that are unsafe for this broker"
_STATUS = "show the nodes of the cluster, and how far each node is behind the log"
_SWITCH = "let a standby become the active node; the present active node ends its process"
_SEED = "copy the data directory of a node for a new node, or for a node that is too far behind"
_FORGET = "remove a node that no longer runs, so that the log keeps no records for this node"

#: The keys of the settings that name the replicated log.
_LOG: Final = ("cluster.name", "cluster.servers", "cluster.topic")
#: The keys of the settings by which the commands judge whether the Kafka topic is safe.
_SAFETY: Final = ("cluster.silence", "cluster.unsafe")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis cluster`."""
    command = add_command(
        commands,
        "cluster",
        _needs_tool,
        "check, show and switch a broker that runs on several nodes",
        "TOOL [ARGUMENT]...",
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool", parser_class=Parser)
    check = _add_tool(
        tools,
        "check",
        check_cluster,
        "[--create] [--json]",
        _CHECK,
        "The exit code is 1 if a setting is unsafe.",
    )
    check.add_argument(
        "--create", action="store_true", help="first create the topic, if it does not exist"
    )
    add_result(check)
    add_settings(check, uses=(*_LOG, *_SAFETY, "cluster.lease", "log.audit"))
    status = _add_tool(
        tools,
        "status",
        show_status,
        "[--json]",
        _STATUS,
        "The exit code is 1 if no node is active.",
    )
    add_json(status)
    add_settings(status, uses=(*_LOG, *_SAFETY))
    switch = _add_tool(
        tools,
        "switch",
        switch_cluster,
        "[NODE] [--yes] [--json] [--url URL]",
        _SWITCH,
        "The command calls the HTTP API of the active node.",
    )
    switch.add_argument(
        "node",
        nargs="?",
        default="",
        metavar="NODE",
        help="name of the standby [the standby that has most of the log]",
    )
    add_yes(switch)
    add_result(switch)
    add_login(switch)
    seed = _add_tool(
        tools,
        "seed",
        seed_node,
        "NODE TARGET [--json]",
        _SEED,
        "Run the command on the machine of a running node, then move TARGET to the data directory "
        "of the new node, and start the new node.",
    )
    seed.add_argument("node", metavar="NODE", help="name of the new node (its node.name)")
    seed.add_argument(
        "target", type=Path, metavar="TARGET", help="directory to create; it must not exist yet"
    )
    add_result(seed)
    add_settings(seed, uses=(*_LOG, "data.dir", "log.audit"))
    forget = _add_tool(
        tools, "forget", forget_node, "NODE [--yes] [--json]", _FORGET, "The node must be stopped."
    )
    forget.add_argument("node", metavar="NODE", help="name of the node")
    add_yes(forget)
    add_result(forget)
    add_settings(forget, uses=(*_LOG, "log.audit"))
    cluster_adopt.add(tools)
    cluster_demo.add(tools)


def _add_tool(
    tools: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    usage: str,
    text: str,
    more: str,
) -> Parser:
    usage = f"{usage} [--config FILE]... [FLAG VALUE]..."
    return add_command(tools, name, run, text, usage, group="cluster", more=more)


def _needs_tool(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "`trellis cluster` needs a tool: check, status, switch, seed, forget, adopt or demo (see "
        "`trellis cluster --help`)",
        2,
    )


def check_cluster(arguments: argparse.Namespace) -> int:
    """Print a line for each unsafe setting of the Kafka cluster and its topic.

    The exit code is 1 if a setting is unsafe.
    """
    cluster = cluster_settings(arguments)
    from trellis.cluster import check

    created = False
    from broker.store.disk import StoreError

    try:
        created = arguments.create and _create_topic(arguments, cluster)
        if created and not arguments.json:
            print(f"created topic '{cluster.log_topic}'")
        findings = list(check.findings(cluster))
    except (*check.FAILURES, StoreError) as error:
        raise failure(error) from None
    if arguments.json:
        names = {"cluster": cluster.name, "topic": cluster.log_topic, "servers": cluster.servers}
        print_json({**names, "created": created, "findings": findings})
        return 1 if findings else 0
    for line in findings:
        print(line)
    if not findings:
        print(
            f"ok: topic '{cluster.log_topic}' at {cluster.servers} is safe for "
            f"cluster '{cluster.name}'"
        )
    return 1 if findings else 0


def _create_topic(arguments: argparse.Namespace, cluster: ClusterSettings) -> bool:
    """Create the topic of the log unless it exists; return True if it was created."""
    from trellis.cluster import check

    with OfflineAudit(load_settings(arguments).settings, "trellis cluster check") as audit:
        created = check.create(cluster)
        if created:
            audit.add("create", "topic", cluster.log_topic, {"cluster": cluster.name})
    return created


def show_status(arguments: argparse.Namespace) -> int:
    """Print the topic and the nodes of the cluster."""
    cluster = cluster_settings(arguments)
    from trellis.cluster import status
    from trellis.cluster.topic_safety import mending_command

    try:
        cluster_status = status.status(cluster)
    except status.FAILURES as error:
        raise failure(error) from None
    if arguments.json:
        document = {
            "cluster": cluster.name,
            "topic": cluster.log_topic,
            "first_offset": cluster_status.low,
            "end_offset": cluster_status.tip,
            "replicas": cluster_status.facts.replicas,
            "replicas_in_sync": cluster_status.facts.in_sync,
            "format": cluster_status.format,
            "unsafe": [finding.text for finding in cluster_status.findings if finding.loses],
            "findings": [
                {"text": finding.text, "mend": mending_command(cluster, finding)}
                for finding in cluster_status.findings
            ],
            "refusal": cluster_status.refusal,
            "nodes": cluster_status.rows,
        }
        print_json(document)
        return 0 if cluster_status.has_active else 1
    print(
        f"cluster {cluster.name}: topic {cluster.log_topic} at {cluster.servers} has records "
        f"{cluster_status.low} to {cluster_status.tip}, and {cluster_status.facts.in_sync} of "
        f"{cluster_status.facts.replicas} replicas in sync; batches have format "
        f"{cluster_status.format or 'unknown'}"
    )
    for finding in cluster_status.findings:
        risk = "the topic can lose confirmed messages: " if finding.loses else "topic: "
        print(f"unsafe: {risk}{finding.text}")
        command = mending_command(cluster, finding)
        if command:
            print(f"  to correct the topic: {command}")
    if cluster_status.refusal:
        print(
            f"the nodes confirm no message until the topic is corrected: {cluster_status.refusal}"
        )
    columns = (
        *("node", "state", "host", "version", "formats"),
        *("batches_behind", "seconds_behind", "clock_ms", "seen_s", "must_be_seeded"),
    )
    nothing = f"no node of cluster '{cluster.name}' has reported its state"
    show(cluster_status.rows, columns, arguments, nothing)
    if not cluster_status.has_active:
        print(cluster_status.next_active(cluster.silence))
    return 0 if cluster_status.has_active else 1


def switch_cluster(arguments: argparse.Namespace) -> int:
    """Ask the active node to hand over to a standby, after a confirmation.

    Print the name of the standby.
    """
    client = ApiClient(arguments)
    confirm_losses(arguments, lambda: _switch_lines(client, arguments.node))
    answer = ask(arguments, "POST", "trellis", "cluster", "switch", body={"to": arguments.node})
    text = f"handed the log of the cluster over to node '{answer['to']}'"
    print_result(arguments, text, node=answer["to"], changed=True)
    return 0


def _switch_lines(client: ApiClient, standby: str) -> Iterator[str]:
    """Yield the lines about the effect of a switch to a standby.

    `standby` is the standby's name; "" if the broker chooses the standby. Yield no line for a
    broker without a cluster: the broker will refuse the switch.
    """
    if not client.json("GET", "trellis", "cluster"):
        return
    overview = client.json("GET", "overview")
    target = f"node '{standby}'" if standby else "the standby that has most of the log"
    connections = count_text(overview["object_totals"]["connections"], "open connection")
    yield (
        f"node '{overview['node']}' will hand the log of the cluster over to {target}, and will "
        "end its process"
    )
    yield f"{connections} will be closed; the clients must connect again"


def seed_node(arguments: argparse.Namespace) -> int:
    """Copy this node's data directory for a new node of the cluster.

    From the beginning of the copy on, the replicated log keeps all records that the copy lacks, so
    that the new node can read them.
    """
    cluster, directory = cluster_settings(arguments), str(data_directory(arguments))
    from trellis.cluster import status

    try:
        with OfflineAudit(load_settings(arguments).settings, "trellis cluster seed") as audit:
            status.announce(cluster, arguments.node, directory)
            facts = {"cluster": cluster.name, "target": str(arguments.target)}
            audit.add("seed", "node", arguments.node, facts)
    except status.FAILURES as error:
        raise failure(error) from None
    size = copy_directory(directory, str(arguments.target.expanduser()))
    text = (
        f"{size} bytes copied to {arguments.target}: move this directory to the machine of node "
        f"'{arguments.node}' as its data directory, and start the node; the cluster keeps the log "
        f"for this node until `trellis cluster forget {arguments.node}`"
    )
    fields = {"node": arguments.node, "target": str(arguments.target), "bytes": size}
    print_result(arguments, text, **fields, changed=True)
    return 0


def forget_node(arguments: argparse.Namespace) -> int:
    """Remove a node from the cluster, after a confirmation.

    The replicated log keeps no more records for the node.
    """
    cluster = cluster_settings(arguments)
    from trellis.cluster import status

    try:
        with OfflineAudit(load_settings(arguments).settings, "trellis cluster forget") as audit:
            confirm_losses(arguments, lambda: status.removal_lines(cluster, arguments.node))
            status.remove_node(cluster, arguments.node)
            audit.add("forget", "node", arguments.node, {"cluster": cluster.name})
    except status.FAILURES as error:
        raise failure(error) from None
    text = (
        f"removed node '{arguments.node}' from the cluster; the active node applies the removal "
        "within seconds"
    )
    print_result(arguments, text, node=arguments.node, changed=True)
    return 0
