"""The broker as a whole: overview, its node, listeners, the current user."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from typing import Final

import trellis
from broker.queues.statistics import STATISTICS
from broker.routing.exchanges import TYPES
from broker.routing.publish_context import sum_into
from broker.vhost.exchange_maker import WITH_QUEUE
from broker.vhost.parameters import CLUSTER_NAME, GLOBAL
from broker.vhost.vhost import VirtualHost
from trellis import process
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    iterate,
    not_found,
    text,
)
from trellis.http.management.rates import delivery_counts
from trellis.http.management.serializers import counts
from trellis.http.management.topology import COUNT_SLICE
from trellis.monitoring.ingress import collect_counts

#: The names in RabbitMQ's memory breakdown of a node, which tools expect in the answer.
MEMORY_PARTS: Final = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other"),
    *("queue_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs"),
    *("stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins"),
    *("metadata_store", "other_proc", "metrics", "mgmt_db", "mnesia", "quorum_ets"),
    *("metadata_store_ets", "other_ets", "binary", "msg_index", "code", "atom"),
    *("other_system", "allocated_unused", "reserved_unallocated"),
)


class Totals:
    """Totals of messages, queues and consumers in the virtual hosts that a user may see."""

    def __init__(self) -> None:
        self.ready = self.unacked = self.queues = self.consumers = self.published = 0
        self.statistics = [0] * len(STATISTICS)

    async def count(self, vhost: VirtualHost) -> None:
        """Add the totals of a virtual host, which are counted in slices."""
        await collect_counts([vhost])
        counted = vhost.totals()
        more = True
        while more:
            more = counted.step(COUNT_SLICE)
            await asyncio.sleep(0)
        self.ready += int(counted.ready + counted.inbox_ready)
        self.unacked += int(counted.unacked + counted.inbox_unacked)
        self.queues += counted.queues + counted.subscribers
        self.consumers += int(counted.consumers)
        self.published += sum(one.received for one in vhost.contexts.collected().values())
        sum_into(self.statistics, counted.statistics)


def _exchange_types() -> list[dict[str, object]]:
    """Return a row for each type of exchange that clients can declare."""
    return [
        {"name": kind, "description": "", "enabled": True} for kind in sorted([*TYPES, *WITH_QUEUE])
    ]


async def overview(call: Call) -> Row:
    """Return versions, message counts, object counts and listeners of the broker."""
    totals = Totals()
    vhosts = call.vhosts
    for vhost in vhosts:
        await totals.count(vhost)
    tally = call.node.amqp.tally
    name = call.broker.name
    return {
        "management_version": trellis.__version__,
        "rabbitmq_version": trellis.__version__,
        "product_version": trellis.__version__,
        "product_name": "Trellis",
        "rates_mode": "basic",
        "sample_retention_policies": {},
        "cluster_name": call.broker.cluster_name,
        "node": name,
        "cluster_tags": {},
        "node_tags": {},
        "erlang_version": "",
        "erlang_full_version": f"Python {platform.python_version()}",
        "exchange_types": _exchange_types(),
        "disable_stats": False,
        "enable_queue_totals": True,
        "is_op_policy_updating_enabled": False,
        "statistics_db_event_queue": 0,
        "message_stats": call.rated(
            ("overview", "" if call.sees_everything else call.identity.name),
            delivery_counts(totals.statistics)
            | {
                "publish": totals.published,
                "confirm": int(tally.confirmed),
                "return_unroutable": int(tally.returned),
                "get_empty": int(tally.get_empty),
            },
        ),
        "churn_rates": {
            "connection_created": sum(front.opened for front in call.node.fronts),
            "connection_closed": sum(sum(front.closed.values()) for front in call.node.fronts),
            "channel_created": int(tally.channels_opened),
            "channel_closed": int(tally.channels_closed),
            "queue_declared": sum(vhost.declarations.queues_declared for vhost in vhosts),
            "queue_created": sum(vhost.declarations.queues_created for vhost in vhosts),
            "queue_deleted": sum(vhost.declarations.queues_deleted for vhost in vhosts),
        },
        "queue_totals": counts(totals.ready, totals.unacked),
        "object_totals": {
            "channels": int(tally.channels_opened - tally.channels_closed),
            "connections": sum(len(front.connections) for front in call.node.fronts),
            "consumers": totals.consumers,
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": totals.queues,
        },
        "listeners": listeners(call),
        "contexts": contexts(call),
    }


def contexts(call: Call) -> list[Row]:
    """Return a row for each HTTP listener, in the form of RabbitMQ's list of web contexts."""
    rows: list[Row] = []
    for name, description in (("http", "Trellis HTTP API"), ("metrics", "Trellis metrics")):
        address = call.node.addresses.get(name)
        if address is not None:
            host, _, port = address.rpartition(":")
            rows.append(
                {
                    "node": call.broker.name,
                    "description": description,
                    "path": "/",
                    "ip": host.strip("[]"),
                    "port": port,
                    "protocol": "http",
                }
            )
    return rows


def listeners(call: Call) -> list[Row]:
    """Return a row for each open listener."""
    rows: list[Row] = []
    for name, address in call.node.addresses.items():
        host, _, port = address.rpartition(":")
        protocol = {
            "amqps": "amqp/ssl",
            "mqtts": "mqtt/ssl",
            "ws": "http/web-mqtt",
            "wss": "https/web-mqtt",
            "metrics": "http/prometheus",
        }.get(name, name)
        rows.append(
            {
                "node": call.broker.name,
                "protocol": protocol,
                "ip_address": host.strip("[]"),
                "port": int(port),
                "tls": name in call.node.certificates.contexts,
                "socket_opts": {},
            }
        )
    return rows


def node_row(call: Call) -> Row:
    """Return the node as a row of the API.

    Slow with many file descriptors: call this in a thread.
    """
    node, watch, alarms = call.node, call.node.alarm_watch, call.broker.alarms.on
    opened = sum(len(front.connections) for front in node.fronts)
    return {
        "name": call.broker.name,
        "type": "disc" if node.directory is not None else "ram",
        "running": node.ready,
        "being_drained": not node.ready,
        "os_pid": str(os.getpid()),
        "uptime": int((time.monotonic() - node.started_at) * 1000),
        "mem_used": process.resident_bytes(),
        "mem_limit": watch.memory_limit,
        "mem_alarm": "memory" in alarms,
        "disk_free": 0 if node.directory is None else process.free_disk_bytes(node.directory),
        "disk_free_limit": watch.disk_limit,
        "disk_free_alarm": "disk" in alarms,
        "fd_used": process.open_descriptors(),
        "fd_total": node.max_descriptors,
        "sockets_used": opened,
        "sockets_total": node.admission.connections,
        "proc_used": 1,
        "proc_total": 1,
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "net_ticktime": 0,
        "partitions": [],
        "log_files": [],
        "db_dir": str(node.directory or ""),
        "config_files": [],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_mqtt"],
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True}
            for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "exchange_types": _exchange_types(),
        "applications": [
            {"name": "trellis", "description": "Trellis", "version": trellis.__version__}
        ],
        "contexts": contexts(call),
    }


async def nodes(call: Call) -> Listing:
    """List the nodes: only the active node, which answers the request."""
    return Listing(
        iterate([await asyncio.get_running_loop().run_in_executor(None, node_row, call)])
    )


def _check_node(call: Call) -> None:
    """Raise ApiRefusal unless the path names this node. There are no other nodes in the API."""
    if call.path_parameters[0] != call.broker.name:
        raise not_found(
            f"there is no node '{call.path_parameters[0]}'; this node is '{call.broker.name}'"
        )


async def node_memory(call: Call) -> Row:
    """Return the node's memory, divided into two parts.

    The part `binary` is the memory of messages, unsent output, unread input and bindings. The part
    `other_system` is all other resident memory.
    """
    _check_node(call)
    resident = process.resident_bytes()
    accounted = min(await call.node.alarm_watch.account.count(), resident)
    total = dict.fromkeys(("erlang", "rss", "allocated"), resident)
    parts = dict.fromkeys(MEMORY_PARTS, 0) | {
        "binary": accounted,
        "other_system": resident - accounted,
    }
    return {"memory": {"strategy": "rss", "total": total, **parts}}


async def rebalance(call: Call) -> Empty:
    """Accept a request to rebalance queues, which has no effect on a single active node."""
    return Empty()


async def node(call: Call) -> Row:
    """Return the node that the path names."""
    _check_node(call)
    return await asyncio.get_running_loop().run_in_executor(None, node_row, call)


async def whoami(call: Call) -> Row:
    """Return the name and the tags of the user that makes the request."""
    return {"name": call.identity.name, "tags": list(call.identity.tags), "is_internal_user": True}


async def cluster_name(call: Call) -> Row:
    """Return the name of the cluster: the name that was set, or else the name of the node."""
    return {"name": call.broker.cluster_name}


async def put_cluster_name(call: Call) -> Empty:
    """Set the name of the cluster, as the global parameter `cluster_name`."""
    name = text(call.body(), "name")
    holder = call.broker.vhosts["/"].parameters
    await call.make_durable(lambda ticket: holder.set(GLOBAL, CLUSTER_NAME, name, ticket))
    return Empty()


async def empty_list(call: Call) -> Listing:
    """Return an empty list, for a kind of RabbitMQ's objects that Trellis does not have."""
    return Listing(iterate([]))


async def login_attempts(call: Call) -> Listing:
    """List the numbers of accepted and failed logins, by protocol."""
    return Listing(
        iterate(
            [
                {
                    "protocol": name,
                    "auth_attempts": sum(logins.values()),
                    "auth_attempts_succeeded": logins.get("accepted", 0),
                    "auth_attempts_failed": sum(logins.values()) - logins.get("accepted", 0),
                }
                for name, logins in [*call.node.logins.items(), ("http", call.counters.logins)]
            ]
        )
    )
