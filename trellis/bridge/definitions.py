"""Translates the settings into definitions for the worker process.

The definitions are the MQTT bridges, and for shovels the address and login of this broker.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from trellis.bridge.contract import LocalAmqp, MqttBridge, MqttLogin
from trellis.settings import Settings
from trellis.settings.bridge import BridgeSettings, parse_remote, parse_topic


def local_address(address: str) -> tuple[str, int]:
    """Return the host and port at which clients on this machine reach a listener.

    `address` is the address of the listener, HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    ip = ipaddress.ip_address(host)
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return host, int(port)


def mqtt_bridge(
    settings: BridgeSettings, addresses: Mapping[str, str], cluster: str = ""
) -> MqttBridge:
    """Return the definition of a bridge. `addresses` has the addresses of listeners by name.

    `cluster` is the name of the cluster, "" outside a cluster. All nodes of a cluster have the same
    client identifier at the remote broker, so that a new active node continues the session.
    """
    remote = parse_remote(settings.remote)
    host, port = local_address(addresses["mqtt"])
    return MqttBridge(
        name=settings.name,
        local=MqttLogin(
            host,
            port,
            f"bridge.{settings.name}",
            settings.local_user,
            settings.local_password,
        ),
        remote=MqttLogin(
            remote.host,
            remote.port,
            settings.client_id or f"{cluster or socket.gethostname()}.{settings.name}",
            settings.remote_user,
            settings.remote_password,
            remote.tls,
            settings.ca,
            settings.certificate,
            settings.key,
            settings.remote_protocol,
            settings.remote_packet_max,
        ),
        topics=tuple(parse_topic(text) for text in settings.topics),
        window=settings.window,
        max_hops=settings.max_hops,
        session_expiry=settings.session_expiry,
        keep_alive=settings.keep_alive,
        reconnect_max=settings.reconnect_max,
    )


def local_amqp(settings: Settings, addresses: Mapping[str, str]) -> LocalAmqp:
    """Return the address and login of this broker for shovels; the port is 0 if amqp is off."""
    host, port = local_address(addresses["amqp"]) if "amqp" in addresses else ("", 0)
    user, password = settings.shovels.user, settings.shovels.password
    # The name is part of the names of queues at upstreams: all nodes of a cluster use these queues.
    return LocalAmqp(host, port, user, password, cluster_name(settings) or settings.node.name)


def cluster_name(settings: Settings) -> str:
    """Return the name of the cluster that this node belongs to; "" outside a cluster."""
    return settings.cluster.name if settings.cluster.enabled else ""
