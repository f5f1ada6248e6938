"""Runs RabbitMQ as a peer, independently of any other RabbitMQ on the machine."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from peers.peer import PeerBroker, Running
from peers.process import LOOPBACK, Child, first_words, free_ports, speaks_amqp, speaks_mqtt
from peers.workloads import Case

#: The directory of the scripts that Debian's command on PATH calls. The command itself requires
#: root and changes to the user rabbitmq.
_SCRIPTS: Final = "/usr/lib/rabbitmq/bin"

_CONFIGURATION: Final = """\
listeners.tcp.1 = {host}:{amqp}
tcp_listen_options.backlog = 4096
tcp_listen_options.nodelay = true
mqtt.listeners.tcp.1 = {host}:{mqtt}
mqtt.tcp_listen_options.backlog = 4096
mqtt.tcp_listen_options.nodelay = true
mqtt.allow_anonymous = true
mqtt.prefetch = 1000
log.console = true
log.console.level = error
log.file = false
collect_statistics = none
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.6
"""

#: Erlang code that prints Erlang's release and its way to run code: jit, or emu if there is no
#: just-in-time compiler for the processor.
_ERLANG: Final = (
    'io:format("~s (~s)", '
    "[erlang:system_info(otp_release), erlang:system_info(emu_flavor)]), halt()."
)


class RabbitMQPeer(PeerBroker):
    """RabbitMQ with its MQTT plugin."""

    name = "rabbitmq"
    title = "RabbitMQ"
    protocols = frozenset({"amqp", "mqtt"})
    start_seconds = 8.0
    highest_qos = 1  # RabbitMQ grants QoS 1 when a client requests QoS 2
    settings = (
        (
            "`+sbwt none`, also for the dirty schedulers: a scheduler that waits does not spin, "
            "because spinning would count as CPU time"
        ),
        (
            "plugin `rabbitmq_mqtt` only, `collect_statistics none`, log of errors only, Nagle's "
            "delay "
            "off, `mqtt.prefetch 1000`"
        ),
    )

    def overhead(self, case: Case) -> float:
        """Return the approximate seconds that a measurement takes in addition to its load."""
        # Measured: a binding takes 1.2 ms including its removal, an MQTT connection about 10 ms.
        return (
            super().overhead(case)
            + 0.0012 * case.workload.bindings
            + 0.01 * case.workload.subscribers
        )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        if self._script("rabbitmq-server") is None:
            return "RabbitMQ is not installed; run apt-get install rabbitmq-server"
        if self.tools.program("epmd") is None:
            return "epmd, a program of Erlang, is not on PATH; run apt-get install rabbitmq-server"
        return ""

    def version(self) -> str:
        """Return the versions of RabbitMQ and Erlang."""
        server = os.path.realpath(self._script("rabbitmq-server") or "")
        match = re.search(r"rabbitmq_server-([\d.]+)", server)
        return (
            f"{match[1] if match else 'unknown'} on Erlang "
            f"{first_words([self.program_path('erl'), '-noshell', '-eval', _ERLANG])}"
        )

    def launch(self, directory: Path, running: Running) -> None:
        """Write RabbitMQ's settings, start epmd and RabbitMQ, and wait until both protocols
        answer."""
        running.amqp, running.mqtt, names, distribution = free_ports(4)
        running.login = "guest:guest@"
        (directory / "rabbitmq.conf").write_text(
            _CONFIGURATION.format(host=LOOPBACK, amqp=running.amqp, mqtt=running.mqtt)
        )
        (directory / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        (directory / "empty.conf").write_text("")
        environment = {
            "HOME": str(directory),  # Erlang stores its cookie in HOME.
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": f"trellis-bench-{running.amqp}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "empty.conf"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "no-advanced.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(directory / "schema"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(directory / "rabbitmq.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface "
                "{127,0,0,1}"
            ),
        }
        # If no name server (epmd) answers, Erlang starts one, which would outlive the broker. So
        # epmd is started here first.
        epmd = Child(
            [self.program_path("epmd"), "-port", str(names), "-address", LOOPBACK],
            directory,
            name="epmd",
        )
        running.children.append(epmd)
        server = Child(
            [self._script("rabbitmq-server") or "rabbitmq-server"], directory, environment
        )
        running.children.append(server)
        server.wait_until(lambda: speaks_amqp(running.amqp) and speaks_mqtt(running.mqtt), 90)

    def _script(self, name: str) -> str | None:
        return shutil.which(name, path=_SCRIPTS) or shutil.which(name)
