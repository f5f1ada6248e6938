"""The program of the app: options, logins, discovery, TLS, clients that act as Home Assistant."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.authority import Authority
from tests.broker import ROOT, environment
from tests.home_assistant.running import APP, PATIENCE, SupervisorServer, running

pytestmark = [pytest.mark.long]

OPTIONS = {
    "logins": [],
    "certfile": "fullchain.pem",
    "keyfile": "privkey.pem",
    "require_certificate": False,
}
#: The topics that Home Assistant subscribes to (its documentation of MQTT discovery).
DISCOVERY = ("homeassistant/+/+/config", "homeassistant/+/+/+/config")
STATUS = "homeassistant/status"


class Client:
    """A client of MQTT 5, with a queue of its messages: topic, payload, retain flag."""

    def __init__(self, name: str, will: bool = False) -> None:
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self.messages: Queue[tuple[str, bytes, bool]] = Queue()
        self._answers: Queue[ReasonCode] = Queue()
        if will:
            self.paho.will_set(STATUS, b"offline")
        self.paho.on_message = self._on_message
        self.paho.on_connect = self._on_connect
        self.paho.on_subscribe = self._on_subscribe

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        self.messages.put((message.topic, bytes(message.payload), message.retain))

    def _on_connect(
        self, client: paho.Client, data: Any, flags: Any, code: ReasonCode, more: Properties | None
    ) -> None:
        self._answers.put(code)

    def _on_subscribe(
        self,
        client: paho.Client,
        data: Any,
        mid: int,
        codes: list[ReasonCode],
        more: Properties | None,
    ) -> None:
        self._answers.put(codes[0])

    def connect(self, address: tuple[str, int], user: str, password: str) -> ReasonCode:
        """Log in; return the reason code of the broker's answer."""
        self.paho.username_pw_set(user, password)
        self.paho.connect(*address, keepalive=60)
        self.paho.loop_start()
        return self._answers.get(timeout=PATIENCE)

    def subscribe(self, *filters: str) -> None:
        """Subscribe to topics, and wait for the answer to each."""
        for text in filters:
            self.paho.subscribe(text)
            assert not self._answers.get(timeout=PATIENCE).is_failure

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Publish a message with QoS 1, and wait until the broker has confirmed it."""
        self.paho.publish(topic, payload, qos=1, retain=retain).wait_for_publish(PATIENCE)

    def next(self) -> tuple[str, bytes, bool]:
        """Wait for the next message; return its topic, payload and retain flag."""
        return self.messages.get(timeout=PATIENCE)

    def cut(self) -> None:
        """Close the socket without DISCONNECT, as a crash of Home Assistant would."""
        self.paho.loop_stop()
        opened = self.paho.socket()
        assert isinstance(opened, socket.socket)
        opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect."""
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def clients(*to_close: Client) -> Iterator[None]:
    """Disconnect the clients after the test."""
    try:
        yield
    finally:
        for client in to_close:
            client.close()


def test_home_assistant_finds_and_uses_the_broker(tmp_path: Path) -> None:
    """Check the broker with a client that acts as Home Assistant, and with a device.

    The client finds the broker by discovery, and gets retained messages. The device gets the birth
    message and the will of the client.
    """
    supervisor = SupervisorServer()
    login = {"username": "sensor", "password": 'a "password" with \\ and ü'}
    options = {**OPTIONS, "logins": [login]}
    home, device = Client("home-assistant", will=True), Client("sensor")
    with running(tmp_path, options, supervisor.url) as app, clients(home, device):
        broker = app.addresses()["mqtt"]
        method, path, discovery = supervisor.next()
        assert (method, path) == ("POST", "/discovery")
        assert discovery["service"] == "mqtt"
        config = discovery["config"]
        assert (config["host"], config["port"]) == (socket.gethostname(), 1883)
        assert config["ssl"] is False
        assert config["protocol"] == "5"
        method, path, service = supervisor.next()
        assert (method, path) == ("POST", "/services/mqtt")
        assert set(service) == {"host", "port", "ssl", "username", "password"}

        # A device announces itself before Home Assistant connects.
        assert not device.connect(broker, *login.values()).is_failure
        device.subscribe(STATUS)
        topic = "homeassistant/sensor/attic/config"
        device.publish(topic, b'{"name": "Attic"}', retain=True)

        assert not home.connect(broker, config["username"], config["password"]).is_failure
        home.subscribe(*DISCOVERY)
        assert home.next() == (topic, b'{"name": "Attic"}', True)
        home.publish(STATUS, b"online")
        assert device.next() == (STATUS, b"online", False)
        device.publish("homeassistant/sensor/attic/t/config", b"{}", retain=True)
        assert home.next() == ("homeassistant/sensor/attic/t/config", b"{}", False)
        home.cut()
        assert device.next() == (STATUS, b"offline", False)

        other = Client("zigbee")
        with clients(other):
            code = other.connect(broker, service["username"], service["password"])
            assert not code.is_failure
        assert app.stop() == 0
    assert supervisor.next() == ("DELETE", "/services/mqtt", None)


def test_retained_topics_and_passwords_outlive_a_restart(tmp_path: Path) -> None:
    supervisor = SupervisorServer()
    configs: list[Any] = []
    for _ in range(2):
        client = Client("home-assistant")
        with running(tmp_path, OPTIONS, supervisor.url) as app, clients(client):
            broker = app.addresses()["mqtt"]
            configs.append(supervisor.next()[2]["config"])
            config = configs[-1]
            assert not client.connect(broker, config["username"], config["password"]).is_failure
            if len(configs) == 1:
                client.publish("homeassistant/sensor/a/config", b"kept", retain=True)
            else:
                client.subscribe("homeassistant/#")
                assert client.next() == ("homeassistant/sensor/a/config", b"kept", True)
            supervisor.next()
            assert app.stop() == 0
            supervisor.next()
    assert configs[0] == configs[1]
    mode = (tmp_path / "data" / "system_users.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_wrong_passwords_and_anonymous_clients_are_refused(tmp_path: Path) -> None:
    supervisor = SupervisorServer()
    options = {**OPTIONS, "logins": [{"username": "a", "password": "right"}]}
    with running(tmp_path, options, supervisor.url) as app:
        broker = app.addresses()["mqtt"]
        for user, password in (("a", "wrong"), ("homeassistant", ""), ("", "")):
            client = Client("x")
            with clients(client):
                assert client.connect(broker, user, password).is_failure, user


def test_rules_of_a_login_limit_its_topics(tmp_path: Path) -> None:
    supervisor = SupervisorServer()
    rules = ["allow publish sensors/{username}/#", "deny all #"]
    login = {"username": "attic", "password": "p", "rules": rules, "administrator": False}
    device, home = Client("attic"), Client("home-assistant")
    with (
        running(tmp_path, {**OPTIONS, "logins": [login]}, supervisor.url) as app,
        clients(device, home),
    ):
        broker = app.addresses()["mqtt"]
        config = supervisor.next()[2]["config"]
        home.connect(broker, config["username"], config["password"])
        home.subscribe("#")
        device.connect(broker, "attic", "p")
        device.publish("sensors/cellar/t", b"refused")
        device.publish("sensors/attic/t", b"allowed")
        assert home.next() == ("sensors/attic/t", b"allowed", False)


def test_ports_with_tls_are_open_if_the_certificate_exists(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.sign("localhost", "127.0.0.1")
    (tmp_path / "app" / "ssl").mkdir(parents=True)
    for name in ("fullchain.pem", "privkey.pem"):
        shutil.copy(certificate, tmp_path / "app" / "ssl" / name)
    supervisor = SupervisorServer()
    client = Client("home-assistant")
    client.paho.tls_set_context(ssl.create_default_context(cafile=str(authority.file)))
    with running(tmp_path / "app", OPTIONS, supervisor.url) as app, clients(client):
        addresses = app.addresses()
        assert {"mqtt", "mqtts", "wss", "amqps"} <= set(addresses)
        config = supervisor.next()[2]["config"]
        code = client.connect(addresses["mqtts"], config["username"], config["password"])
        assert not code.is_failure
    key = tmp_path / "app" / "run" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def others_may_enter(path: Path) -> bool:
    """True if every user may enter the directory `path` and its parent directories."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))


def python_of_all_users() -> str:
    """Return the path of a Python interpreter of the tests' version that every user may run.

    Skip the test if there is no such interpreter.
    """
    interpreter = shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""
    code = "import sys; print(*sys.version_info[:2])"
    if not interpreter or not others_may_enter(Path(interpreter).resolve().parent):
        pytest.skip("there is no Python that every user may run")
    version = subprocess.run(
        [interpreter, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    if version.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip(f"{interpreter} and the Python of the tests have different versions")
    return interpreter


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_broker_runs_as_an_unprivileged_user() -> None:
    """The broker reads its settings and its private key, and writes its data, as user 10001."""
    python = python_of_all_users()
    supervisor = SupervisorServer()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if not others_may_enter(directory) or not others_may_enter(ROOT):
            pytest.skip(f"the user 10001 may not enter {directory} or {ROOT}")
        certificate = Authority(directory / "authority").sign("localhost")
        (directory / "ssl").mkdir()
        for file in ("fullchain.pem", "privkey.pem"):
            shutil.copy(certificate, directory / "ssl" / file)
            (directory / "ssl" / file).chmod(0o600)
        arguments = (directory, OPTIONS, supervisor.url, "--user", "10001")
        with running(*arguments, python=python) as app:
            assert "mqtts" in app.addresses()
            files = [*(directory / "data" / "trellis").rglob("*"), *(directory / "run").iterdir()]
            assert {file.stat().st_uid for file in files} == {10001}
            assert (directory / "data" / "options.json").stat().st_uid == 0


def test_settings_of_the_user_override_those_of_the_app(tmp_path: Path) -> None:
    supervisor = SupervisorServer()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "trellis.toml").write_text("[http]\nenabled = false\n")
    with running(tmp_path, OPTIONS, supervisor.url) as app:
        addresses = app.addresses()
    assert "http" not in addresses
    assert "mqtts" not in addresses


def test_a_supervisor_that_is_away_is_asked_again(tmp_path: Path) -> None:
    supervisor = SupervisorServer(502)
    with running(tmp_path, OPTIONS, supervisor.url) as app:
        app.line("trellis app: a request to the Supervisor failed")
        assert app.line("trellis app: Home Assistant can find the broker")
        paths = [supervisor.next()[1] for _ in range(3)]
        assert paths == ["/discovery", "/discovery", "/services/mqtt"]


def test_another_broker_that_provides_the_service_is_reported(tmp_path: Path) -> None:
    supervisor = SupervisorServer(200, 400)
    with running(tmp_path, OPTIONS, supervisor.url) as app:
        app.line("trellis app: Home Assistant can find the broker")
        line = app.line("trellis app: other apps cannot find the broker")
        assert "There is already a MQTT service in use" in line


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"logins": [{"username": "homeassistant", "password": "p"}]}, "choose another name"),
        ({"logins": [{"username": "a", "password": "p"}] * 2}, "'a' occurs twice"),
        ({"logins": [{"username": "a", "password": ""}]}, "needs a user name and a password"),
        ({"logins": [{"username": "a"}]}, "cannot read the options"),
        ({"require_certificate": True}, "require_certificate needs the option cafile"),
        ({"require_certificate": True, "cafile": "ca.pem"}, "fullchain.pem does not exist"),
        ({"logins": [{"username": "a", "password": "p", "rules": ["permit x"]}]}, "rules"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    supervisor = SupervisorServer()
    with running(tmp_path, {**OPTIONS, **options}, supervisor.url) as app:
        errors = app.errors()
        assert problem in errors
        assert "Traceback" not in errors
        assert app.process.returncode == 2


def test_build_makes_a_folder_from_which_the_image_can_install(tmp_path: Path) -> None:
    """Check that the first command of docs/home-assistant.md makes a complete folder of the app.

    pip must install the wheel in the folder as in the Dockerfile, and the installed app must start.
    """
    page = (ROOT / "docs" / "home-assistant.md").read_text()
    [command] = re.findall(r"^    (packaging/\S+) /path/to/addons/trellis$", page, re.MULTILINE)
    target = tmp_path / "addons" / "trellis"
    pip = f"{sys.executable} -m pip"
    words = [ROOT / command, target]
    subprocess.run(words, env=os.environ | {"PIP": pip}, cwd=tmp_path, check=True, timeout=600)
    for file in ("config.yaml", "Dockerfile", "DOCS.md", "addon/__main__.py"):
        assert (target / file).read_bytes() == (APP / file).read_bytes()
    install = [*pip.split(), "install", "--quiet", "--no-index", "--no-deps"]
    [wheel] = (target / "wheels").glob("trellis_broker-*.whl")
    install += ["--target", str(tmp_path / "installed"), str(wheel)]
    subprocess.run(install, check=True, timeout=600)
    variables = environment() | {
        "PYTHONPATH": os.pathsep.join((str(tmp_path / "installed"), str(target)))
    }
    done = subprocess.run(
        [sys.executable, "-m", "addon", "--data", str(tmp_path)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "options.json" in done.stderr
