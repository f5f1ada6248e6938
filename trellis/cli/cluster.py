"""`trellis cluster`: commands for a broker on several nodes."""

from __future__ import annotations

import argparse

from trellis import logs
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
)

_CHECK = "name each setting of the Kafka cluster and its topic that is unsafe for this broker"


def add(commands: Commands) -> None:
    """Add the command cluster."""
    command = add_command(
        commands,
        "cluster",
        _needs_tool,
        "check the Kafka cluster of a broker on several nodes",
        "check [--create] [--config FILE]...",
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool")
    check: Parser = tools.add_parser(
        "check",
        prog="trellis cluster check",
        usage="trellis cluster check [--create] [--config FILE]... [FLAG VALUE]...",
        help=_CHECK,
        description=f"{_CHECK[:1].upper()}{_CHECK[1:]}. The exit code is 1 if there is any.",
    )
    check.set_defaults(run=check_cluster, parser=check)
    check.add_argument(
        "--create", action="store_true", help="first create the topic, if it does not exist"
    )
    add_settings(check, "cluster")


def _needs_tool(arguments: argparse.Namespace) -> int:
    raise CommandError("name a tool: check (see `trellis cluster --help`)", 2)


def check_cluster(arguments: argparse.Namespace) -> int:
    """Print a line for each unsafe setting of the Kafka cluster and its topic."""
    cluster = load_settings(arguments).settings.cluster
    if not cluster.enabled:
        raise CommandError("cluster.servers is empty: name the Kafka nodes, as HOST:PORT", 2)
    logs.set_up("warning")
    try:
        from trellis.cluster import check
    except ImportError as error:
        raise CommandError(
            f"Kafka's client cannot be imported ({error}); pip install 'trellis-broker[cluster]'"
        ) from None
    try:
        if arguments.create and check.create(cluster):
            print(f"created topic '{cluster.log_topic}'")
        found = list(check.findings(cluster))
    except check.FAILURES as error:
        raise CommandError(str(error)) from None
    for line in found:
        print(line)
    if not found:
        print(f"ok: topic '{cluster.log_topic}' at {cluster.servers} is safe for '{cluster.name}'")
    return 1 if found else 0
