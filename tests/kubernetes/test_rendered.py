"""Tests of the objects that Helm makes of the chart: Kubernetes accepts them, and brokers run with
the settings in them.
"""

from __future__ import annotations

import json
import re
import shlex
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pika
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from tests.authority import Authority
from tests.cluster.nodes import PATIENCE
from tests.cluster.programs import Kfake
from tests.kubernetes.pods import Pod, Release, Secrets
from tests.kubernetes.programs import CHART, EXAMPLES, ROOT, check, helm, render

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("helm")]

PASSWORD: Final = ("--set", "auth.password=secret")
NAMES: Final = ("node", "tls", "cluster", "cluster-trial")
#: The Secret plant-settings: settings with a password. The bridge connects to its broker over plain
#: MQTT on loopback, where no client of another machine can connect.
BRIDGE: Final = """
[mqtt]
enabled = true
host = "127.0.0.1"

[[bridge]]
name = "office"
remote = "mqtts://mqtt.example:8883"
topics = ["sensors/# out 1"]
remote_password = "hidden"
"""


def example(name: str) -> tuple[str, str]:
    """Return the arguments of helm for an example."""
    return "--values", str(EXAMPLES / f"{name}.yaml")


def secrets(directory: Path) -> Secrets:
    """Return the Secrets that the examples name."""
    authority = Authority(directory)
    certificate = authority.sign("localhost", "127.0.0.1").read_bytes()
    definitions = {"vhosts": [{"name": "/"}], "queues": []}
    return {
        "trellis-admin": {"password": b"secret\n"},
        "trellis-tls": {
            "tls.crt": certificate,
            "tls.key": certificate,
            "ca.crt": authority.file.read_bytes(),
        },
        "plant-settings": {"settings.toml": BRIDGE.encode()},
        "plant-definitions": {"definitions.json": json.dumps(definitions).encode()},
        "kafka-client": {
            "kafka.toml": (EXAMPLES / "kafka.toml").read_bytes(),
            "ca.crt": authority.file.read_bytes(),
        },
    }


@pytest.fixture(params=["default", *NAMES])
def words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The arguments of helm for the default values with a password, and for each example."""
    return PASSWORD if request.param == "default" else example(request.param)


# -- Helm and Kubernetes


def test_lint_finds_nothing(words: tuple[str, ...]) -> None:
    done = helm("lint", "--strict", CHART, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_objects_fit_the_schemas_of_kubernetes(words: tuple[str, ...]) -> None:
    assert check(render(*words)) == ""


def test_a_misspelt_field_does_not_fit() -> None:
    """Check that `check` reports an unknown field and a value of a wrong type."""
    manifests = render(*PASSWORD)
    assert "readOnlyRootFilesystem" in manifests
    assert "readOnlyRoot'" in check(manifests.replace("readOnlyRootFilesystem", "readOnlyRoot"))
    assert check(manifests.replace("periodSeconds: 10", "periodSeconds: ten")) != ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "auth.password is empty"),
        ((*PASSWORD, "--set", "auth.existingSecret=x"), "auth.password and auth.existingSecret"),
        ((*PASSWORD, "--set", "listeners.mqtts.enabled=true"), "tls.existingSecret is empty"),
        ((*PASSWORD, "--set", "listeners.http.tls=true"), "tls.existingSecret is empty"),
        ((*PASSWORD, "--set", "cluster.enabled=true"), "cluster.servers is empty"),
        ((*PASSWORD, "--set", "clusters.enabled=true"), "clusters"),
        ((*example("cluster"), "--set", "cluster.options.x=1"), "cluster.options"),
        ((*example("tls"), "--set", "definitions.content.x=1"), "definitions.content"),
    ],
)
def test_values_that_cannot_work_are_refused(words: tuple[str, ...], problem: str) -> None:
    done = helm("template", "trellis", CHART, *words)
    assert done.returncode != 0
    assert problem in done.stderr


def test_pods_are_hardened(words: tuple[str, ...]) -> None:
    release = Release(render(*words))
    pods = [release.pod]
    pods += [one["spec"]["template"]["spec"] for one in release.objects if one["kind"] == "Job"]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            for mount in container["volumeMounts"]:
                writable = mount["mountPath"] in ("/var/lib/trellis", "/tmp")
                assert mount.get("readOnly", False) is not writable


def test_passwords_are_in_secrets_only() -> None:
    for name, password in (("node", 'a "secret"'), ("cluster-trial", "trial")):
        release = Release(render(*example(name)))
        others = [one for one in release.objects if one["kind"] != "Secret"]
        assert password not in yaml.safe_dump(others, allow_unicode=True, width=10_000)


def test_services_select_the_brokers_pods_only(words: tuple[str, ...]) -> None:
    release = Release(render(*words))
    labels = release.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert release.one("StatefulSet")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for service in ("trellis", "trellis-nodes"):
        selector = release.one("Service", service)["spec"]["selector"]
        assert selector.items() <= labels.items()
        for job in (one for one in release.objects if one["kind"] == "Job"):
            other = job["spec"]["template"]["metadata"]["labels"]
            assert not selector.items() <= other.items()


def test_alerts_and_scrapes_are_those_of_the_project() -> None:
    release = Release(render(*example("node")))
    alerts = yaml.safe_load((ROOT / "config/prometheus/rules/trellis.yml").read_text())
    assert release.one("PrometheusRule")["spec"] == alerts
    monitor = release.one("ServiceMonitor")["spec"]
    nodes = release.one("Service", "trellis-nodes")
    labels = nodes["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "trellis"  # The alerts ask for job="trellis".
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == ["metrics"]
    assert [port["name"] for port in nodes["spec"]["ports"]] == ["metrics"]
    assert nodes["spec"]["publishNotReadyAddresses"] is True


def test_changed_settings_restart_the_pods() -> None:
    def annotations(*more: str) -> Any:
        release = Release(render(*PASSWORD, *more))
        return release.one("StatefulSet")["spec"]["template"]["metadata"]["annotations"]

    before = annotations()
    assert annotations() == before
    for more in ("settings=[limits]", "listeners.ws.enabled=true", "auth.password=other"):
        assert annotations("--set", more) != before, more


# -- the settings, as the broker reads them


@pytest.fixture
def release(words: tuple[str, ...], tmp_path: Path) -> Release:
    """The objects of an example, with the Secrets that it names."""
    return Release(render(*words), secrets(tmp_path / "secrets"))


def test_broker_accepts_the_settings(release: Release, tmp_path: Path) -> None:
    pod = Pod(release, tmp_path / "pod")
    code, output = pod.run("check-config")
    assert code == 0, output
    assert output.startswith("ok: ")


def test_settings_are_those_of_the_values(release: Release, tmp_path: Path) -> None:
    pod = Pod(release, tmp_path / "pod", number=1)
    settings = pod.settings()
    listeners = settings.listeners
    # Only bridges of the same pod can connect to a listener on loopback.
    inside = {name for name, one in listeners.items() if one.host == "127.0.0.1"}
    assert inside == ({"mqtt"} if settings.bridge else set())
    ports = {name: one.port for name, one in listeners.items() if name not in inside}
    assert {one["name"]: one["containerPort"] for one in release.container["ports"]} == ports
    clients = {one["name"]: one["port"] for one in release.one("Service")["spec"]["ports"]}
    assert clients == {name: port for name, port in ports.items() if name != "metrics"}
    assert {one.host for name, one in listeners.items() if name in ports} == {"0.0.0.0"}
    assert settings.node.name == "trellis-1"
    assert settings.data.dir == f"{tmp_path}/pod/var/lib/trellis/data"
    assert settings.user == "admin"
    assert settings.password
    assert settings.auth.guest is False
    assert settings.mqtt.anonymous == "false"
    assert settings.cluster.enabled is (release.one("StatefulSet")["spec"]["replicas"] > 1)


def test_settings_of_the_examples(tmp_path: Path) -> None:
    given = secrets(tmp_path / "secrets")
    pods = {
        name: Pod(Release(render(*example(name)), given), tmp_path / name).settings()
        for name in NAMES
    }
    node = yaml.safe_load((EXAMPLES / "node.yaml").read_text())
    assert pods["node"].password == node["auth"]["password"]
    assert pods["node"].limits.connections == 5000
    assert pods["node"].mqtt.session_expiry == 86_400
    definitions = json.loads(Path(pods["node"].definitions.file).read_text())
    assert definitions == node["definitions"]["content"]
    assert set(pods["tls"].listeners) == {"amqps", "mqtts", "wss", "http", "metrics", "mqtt"}
    assert pods["tls"].listeners["mqtt"].host == "127.0.0.1"
    assert pods["tls"].http.tls
    assert pods["tls"].mqtts.certificate_user
    assert [bridge.remote_password for bridge in pods["tls"].bridge] == ["hidden"]
    assert pods["cluster"].cluster.name == "orders"
    options = tomllib.loads((EXAMPLES / "kafka.toml").read_text())["cluster"]["options"]
    moved = {**options, "ssl.ca.location": f"{tmp_path}/cluster/etc/trellis/kafka/ca.crt"}
    assert pods["cluster"].cluster.options == moved
    assert pods["cluster"].cluster.advertised == "trellis.messaging.svc.cluster.local"
    trial = yaml.safe_load((EXAMPLES / "cluster-trial.yaml").read_text())["cluster"]["options"]
    assert pods["cluster-trial"].cluster.name == "trellis"
    assert pods["cluster-trial"].cluster.options == {
        name: str(value) for name, value in trial.items()
    }


# -- brokers


def test_a_node_serves_with_the_rendered_settings(tmp_path: Path) -> None:
    release = Release(render(*example("node")))
    pod = Pod(release, tmp_path / "pod")
    password = pod.settings().password
    with pod.serve() as node:
        node.wait_for("ready")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert node.health(release.container[probe]["httpGet"]["path"]) == 200
        host, _, port = node.addresses["amqp"].rpartition(":")
        login = pika.PlainCredentials("admin", password)
        parameters = pika.ConnectionParameters(host, int(port), credentials=login)
        with pika.BlockingConnection(parameters) as connection:
            declared = connection.channel().queue_declare("orders", passive=True)
            assert declared.method.message_count == 0
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.username_pw_set("admin", password)
        host, _, port = node.addresses["mqtt"].rpartition(":")
        assert client.connect(host, int(port)) == paho.MQTT_ERR_SUCCESS
        client.loop_start()
        client.publish("plant/1/temp", b"21", qos=1).wait_for_publish(30)
        client.disconnect()
        client.loop_stop()
        code, output = pod.run("list", "queues", "--url", f"http://{node.addresses['http']}")
        assert code == 0, output
        assert "orders" in output
    assert (tmp_path / "pod/var/lib/trellis/data").stat().st_mode & 0o777 == 0o700


def test_only_the_active_node_of_a_cluster_is_ready(tmp_path: Path) -> None:
    """Check that both nodes of a cluster are live, and that only the active node is ready.

    When the active node is killed, the standby must become ready.
    """
    kafka = Kfake()
    try:
        servers = kafka.servers.replace(",", r"\,")
        release = Release(render(*example("cluster-trial"), "--set", f"cluster.servers={servers}"))
        pods = [Pod(release, tmp_path / f"pod-{number}", number) for number in (0, 1)]
        [job] = [one for one in release.objects if one["kind"] == "Job"]
        [container] = job["spec"]["template"]["spec"]["containers"]
        code, output = pods[0].run(*container["args"])
        assert "created topic 'trellis-trellis'" in output, (code, output)
        code, output = pods[0].run(*container["args"])
        assert "created topic" not in output
        live = release.container["livenessProbe"]["httpGet"]["path"]
        ready = release.container["readinessProbe"]["httpGet"]["path"]
        with ExitStack() as stack:
            active = stack.enter_context(pods[0].serve())
            active.wait_for("following")
            active.wait_for("ready")
            standby = stack.enter_context(pods[1].serve())
            standby.wait_for("following")
            assert [node.health(live) for node in (active, standby)] == [200, 200]
            assert [node.health(ready) for node in (active, standby)] == [200, 503]
            url = f"http://{standby.addresses['metrics']}"
            assert pods[1].run("health", "--url", url)[0] == 0
            assert pods[1].run("health", "--active", "--url", url)[0] == 1
            # The active node reports its new state to the log a moment after it is ready.
            end = time.monotonic() + PATIENCE
            while (status := pods[1].run("cluster", "status"))[0] != 0:
                assert time.monotonic() < end, status
            output = status[1]
            assert "trellis-0" in output and "trellis-1" in output
            active.kill()
            standby.wait_for("ready")
            assert standby.health(ready) == 200
    finally:
        kafka.close()


# -- the commands of docs/kubernetes.md


def documented() -> list[list[str]]:
    """Return the words of each command `helm install` in docs/kubernetes.md."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    lines = re.findall(r"^    helm (install .*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_documented_commands_render_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = documented()
    assert len(commands) == 3
    for command in commands:
        done = helm("template", *command[1:])
        assert done.returncode == 0, done.stderr


def test_first_documented_command_makes_the_documented_objects() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| (\w+) `([a-z-]+)` \|", page, re.MULTILINE)
    release = Release(render(*documented()[0][3:]))
    rendered = {(one["kind"], one["metadata"]["name"]) for one in release.objects}
    assert set(rows) == rendered
