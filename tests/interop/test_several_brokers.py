"""Tests of docs/several-brokers.md: two brokers on one machine, and HAProxy in front of them.

The commands are read from the page. Commands of systemd and apt-get need a booted machine:
tests/test_service.py runs the service `trellis@plant-a` there.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import socket
import ssl
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.addresses import free_port
from tests.authority import Authority
from tests.broker import ROOT, BrokerProcess, run_command
from tests.foreign import require
from tests.haproxy import HaproxyProcess

#: The files that the page installs, and the brokers whose settings they have.
FILES: Final = ROOT / "config" / "tenants"
NAMES: Final = ("plant-a", "plant-b")
PAGE: Final = (ROOT / "docs" / "several-brokers.md").read_text()
#: The commands of the page: its indented lines, except the settings of a unit.
COMMANDS: Final = [
    shlex.split(line)
    for line in re.findall(r"^    (.+)$", PAGE, re.MULTILINE)
    if not re.match(r"\[\w+\]$|[A-Z]\w+=", line)
]
#: The programs of the commands that only a booted machine can run.
BOOTED: Final = {"systemctl", "journalctl", "apt-get"}
#: Seconds within which a client must get an answer.
PATIENCE: Final = 20.0


class Machine(NamedTuple):
    """Two brokers behind HAProxy; `ports` has HAProxy's port for each listener, by its name."""

    brokers: dict[str, BrokerProcess]
    ports: dict[str, int]
    #: Trusts the certificates of the brokers.
    tls: ssl.SSLContext
    balancer: HaproxyProcess


def settings_of(name: str) -> dict[str, Any]:
    return tomllib.loads((FILES / f"{name}.toml").read_text())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Start the two brokers and HAProxy with the files of the page, on free ports."""
    require("haproxy")
    directory = tmp_path_factory.mktemp("tenants")
    authority = Authority(directory)
    brokers: dict[str, BrokerProcess] = {}
    text = (FILES / "haproxy.cfg").read_text()
    text = text.replace("/etc/haproxy/tenants.map", str(FILES / "tenants.map"))
    try:
        for name in NAMES:
            certificate = authority.sign(f"{name}.mq.example")
            definitions = directory / f"{name}.json"
            definitions.write_text(json.dumps({"vhosts": [{"name": name}]}))
            brokers[name] = BrokerProcess(
                *("--config", str(FILES / f"{name}.toml"), "--tls-certificate", str(certificate)),
                *("--amqps-port", "0", "--mqtts-port", "0", "--definitions-file", str(definitions)),
                *("--user", "ann", "--password", "secret"),
            )
            for listener in ("amqps", "mqtts", "mqtt", "http"):
                own = brokers[name].addresses[listener].port
                written = settings_of(name)[listener]["port"]
                text, count = re.subn(rf"127.0.0.1:{written}\b", f"127.0.0.1:{own}", text)
                assert count == 1
        ports = {}
        for listener, port in {"amqps": 5671, "mqtts": 8883, "mqtt": 1883, "http": 15672}.items():
            ports[listener] = free_port()
            text = text.replace(f"bind :{port}\n", f"bind 127.0.0.1:{ports[listener]}\n")
        balancer = HaproxyProcess(text, directory)
        try:
            balancer.wait_for_port(ports["http"])
            tls = ssl.create_default_context(cafile=str(authority.file))
            yield Machine(brokers, ports, tls, balancer)
        finally:
            balancer.close()
        for broker in brokers.values():
            broker.stop()
    finally:
        for broker in brokers.values():
            broker.kill()


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_accepted_and_share_no_port(name: str) -> None:
    done = run_command("check-config", "--config", str(FILES / f"{name}.toml"))
    assert "certificate" in done.stderr and "ports" not in done.stderr, done.stderr
    used = [
        section["port"]
        for one in NAMES
        for section in settings_of(one).values()
        if "port" in section
    ]
    assert len(used) == len(set(used)) == 12


@pytest.mark.parametrize("name", NAMES)
def test_host_name_selects_the_broker_of_an_amqp_client(machine: Machine, name: str) -> None:
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        machine.ports["amqps"],
        credentials=pika.PlainCredentials("ann", "secret"),
        ssl_options=pika.SSLOptions(machine.tls, f"{name}.mq.example"),
    )
    connection = pika.BlockingConnection(parameters)
    properties = connection._impl.server_properties
    own = connection._impl._transport._sock.getsockname()
    [row] = listed(machine, name, "connections")
    connection.close()
    assert properties["cluster_name"] == name
    # The PROXY header carries the client's own address.
    assert (row["peer_host"], row["peer_port"]) == own


def commands(program: str) -> list[list[str]]:
    """Return the commands of the page that call a program, without `sudo` and the program."""
    plain = [command[command[0] == "sudo" :] for command in COMMANDS]
    return [command[1:] for command in plain if command[0] == program]


def test_every_command_of_the_page_has_a_test() -> None:
    programs = {command[command[0] == "sudo"] for command in COMMANDS}
    assert programs - BOOTED == {"install", "trellis", "sed", "haproxy"}
    assert {words[0] for words in commands("trellis")} == {"check-config", "vhosts"}


def test_installed_files_are_accepted(tmp_path: Path) -> None:
    """Check that the broker and HAProxy accept the files that the page's commands install.

    The test runs the page's commands `install`, `check-config` and `haproxy -c`, with a temporary
    directory in the place of /etc.
    """
    etc = tmp_path / "etc"
    for words in commands("install"):
        directory = Path(f"{tmp_path}{words[-1]}")
        directory.mkdir(parents=True)
        subprocess.run(["install", *words[:-1], directory], cwd=ROOT, check=True)
    authority = Authority(tmp_path)
    for name in NAMES:
        authority.sign(f"{name}.mq.example").rename(etc / "trellis" / f"{name}.pem")
    for path in [*etc.glob("trellis/*.toml"), *etc.glob("haproxy/*.cfg")]:
        path.write_text(path.read_text().replace("/etc/", f"{etc}/"))
    checked = [words for words in commands("trellis") if words[0] == "check-config"]
    assert [words[-1] for words in checked] == [f"/etc/trellis/{name}.toml" for name in NAMES]
    for words in checked:
        done = run_command(*(word.replace("/etc/", f"{etc}/") for word in words))
        assert (done.returncode, done.stderr) == (0, ""), done
    [words] = commands("haproxy")
    subprocess.run(
        [require("haproxy"), "-n", "100", *(word.replace("/etc/", f"{etc}/") for word in words)],
        check=True,
    )


def test_template_unit_is_made_with_the_command_of_the_page() -> None:
    [words] = commands("sed")
    assert words[-2:] == [">", "/etc/systemd/system/trellis@.service"]
    printed = subprocess.run(["sed", *words[:-2]], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    unit = printed.stdout.decode()
    assert "/etc/trellis/%i.toml" in unit and "StateDirectory=trellis-%i" in unit


def test_virtual_host_is_added_with_the_command_of_the_page(
    machine: Machine, tmp_path: Path
) -> None:
    [words] = [words for words in commands("trellis") if words[0] == "vhosts"]
    name = words[2]
    url = f"http://127.0.0.1:{settings_of(name)['http']['port']}"
    own = str(machine.brokers[name].addresses["http"].port)
    (tmp_path / words[words.index("--password-file") + 1]).write_text("secret\n")
    assert url in words
    words = [f"http://127.0.0.1:{own}" if word == url else word for word in words]
    before = [row["name"] for row in listed(machine, name, "vhosts")]
    words[2] = "added"
    done = run_command(*words, directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert [row["name"] for row in listed(machine, name, "vhosts")] == [*before, "added"]


def test_reload_of_haproxy_keeps_connections(machine: Machine) -> None:
    """Check that a connection stays open when HAProxy reloads its configuration (SIGUSR2).

    `systemctl reload haproxy` sends this signal. The option `hard-stop-after` must not be set: it
    would end the connection some time after the reload.
    """
    assert "hard-stop-after" not in (FILES / "haproxy.cfg").read_text()
    old = MqttClient(machine.ports["mqtt"], "plant-a:ann", MQTTProtocolVersion.MQTTv5, None)
    old.open("mq.example")
    assert old.code == "Success"
    machine.balancer.reload()
    new = MqttClient(machine.ports["mqtt"], "plant-a:ann", MQTTProtocolVersion.MQTTv5, None)
    new.open("mq.example")
    assert new.code == "Success"
    assert old.is_acknowledged()
    for client in (old, new):
        client.disconnect()


def listed(machine: Machine, name: str, what: str) -> list[dict[str, Any]]:
    """Return the objects (`what`, such as "queues") of the broker `name`, from the HTTP API.

    HAProxy finds the broker by the host name in the request.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{machine.ports['http']}/api/{what}",
        headers={
            "Host": f"{name}.mq.example",
            "Authorization": "Basic " + base64.b64encode(b"ann:secret").decode(),
        },
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        objects: list[dict[str, Any]] = json.load(response)
    return objects


def test_unknown_host_name_is_refused(machine: Machine) -> None:
    with (
        socket.create_connection(("127.0.0.1", machine.ports["amqps"]), PATIENCE) as plain,
        pytest.raises(ssl.SSLError),
    ):
        machine.tls.wrap_socket(plain, server_hostname="plant-c.mq.example")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        listed(machine, "plant-c", "queues")


class MqttClient(paho.Client):
    """A client that connects to HAProxy, whatever host name is passed to `open`."""

    def __init__(
        self, port: int, user: str, version: MQTTProtocolVersion, context: ssl.SSLContext | None
    ) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=version)
        self.username_pw_set(user, "secret")
        self._through = port
        #: The text of the CONNACK's reason code; "" before.
        self.code = ""
        self.ended = False
        self.on_connect = self._connected
        self.on_disconnect = self._disconnected
        if context is not None:
            self.tls_set_context(context)

    def _create_socket_connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._through), PATIENCE)

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self.code = str(code)

    def _disconnected(self, *arguments: Any) -> None:
        self.ended = True

    def open(self, host: str) -> None:
        """Connect to a host name, and wait for the CONNACK or for the end of the connection."""
        self.connect(host)
        end = time.monotonic() + PATIENCE
        while not self.code and not self.ended and time.monotonic() < end:
            self.loop(1.0)

    def is_acknowledged(self) -> bool:
        """Publish a message with QoS 1; return True if the broker acknowledges it."""
        message = self.publish("reloaded", b"x", qos=1)
        end = time.monotonic() + PATIENCE
        while not message.is_published() and not self.ended and time.monotonic() < end:
            self.loop(1.0)
        return message.is_published()


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("name", NAMES)
def test_virtual_host_selects_the_broker_of_an_mqtt_client(
    machine: Machine, name: str, version: MQTTProtocolVersion
) -> None:
    client = MqttClient(machine.ports["mqtt"], f"{name}:ann", version, None)
    client.open("mq.example")
    assert client.code == "Success"
    assert [row["vhost"] for row in listed(machine, name, "connections")] == [name]
    client.disconnect()


@pytest.mark.parametrize("name", NAMES)
def test_host_name_selects_the_broker_of_an_mqtt_client(machine: Machine, name: str) -> None:
    client = MqttClient(machine.ports["mqtts"], "ann", MQTTProtocolVersion.MQTTv5, machine.tls)
    client.open(f"{name}.mq.example")
    assert client.code == "Success"
    assert [row["vhost"] for row in listed(machine, name, "connections")] == ["/"]
    client.disconnect()


def test_mqtt_client_without_a_broker_is_disconnected(machine: Machine) -> None:
    client = MqttClient(machine.ports["mqtt"], "plant-c:ann", MQTTProtocolVersion.MQTTv5, None)
    client.open("mq.example")
    assert client.ended and not client.code
