"""Bridges and shovels over TLS, with a certificate of the client, and with a wrong authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.bridge.amqp import channel, take
from tests.bridge.running import BridgingBroker, Received, Recorder, bridge


class Files:
    """PEM files of an authority, of a broker and of a client."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.broker, self.client, self.other = (
            str(folder / f"{name}.pem") for name in ("ca", "broker", "client", "other")
        )
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.other)
        for file, name in ((self.broker, "localhost"), (self.client, "client")):
            authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(file)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def remote(tmp_path: Path, files: Files) -> Iterator[BridgingBroker]:
    text = "".join(
        f'[{name}]\nenabled = true\nport = 0\nclient_certificate = "required"\n'
        for name in ("mqtts", "amqps")
    )
    text += f'[tls]\ncertificate = "{files.broker}"\nca = "{files.ca}"\n'
    broker = BridgingBroker(tmp_path / "remote", text)
    yield broker
    broker.stop()


def test_a_bridge_and_a_shovel_over_tls(
    tmp_path: Path, files: Files, remote: BridgingBroker
) -> None:
    port = remote.addresses["mqtts"].port
    table = bridge("b", 0, ["s/# out 1"], ca=files.ca, certificate=files.client)
    wrong = bridge("wrong", 0, ["s/# out 1"], ca=files.other, certificate=files.client)
    text = (table + wrong).replace("mqtt://127.0.0.1:0", f"mqtts://localhost:{port}")
    local = BridgingBroker(tmp_path / "local", text)
    local.wait_up("b")
    far = Recorder(remote.mqtt.port, "far", "s/#")
    near = Recorder(local.mqtt.port, "near")
    # Publish many large messages: TLS may have decoded bytes although its socket has none to read.
    for number in range(20):
        near.publish("s/t", b"%02d" % number * 20_000)
    got = far.take(20)
    assert got == [Received("s/t", b"%02d" % number * 20_000, 1, False) for number in range(20)]
    row = local.wait("wrong", lambda row: "certificate" in row["error"].lower())
    assert row["state"] == "connecting"

    client = channel(local)
    client.queue_declare("q", durable=True)
    client.basic_publish("", "q", b"x" * 300_000)
    query = f"cacertfile={files.ca}&certfile={files.client}"
    port = remote.addresses["amqps"].port
    value = {
        "src-uri": "amqp://",
        "src-queue": "q",
        "dest-uri": f"amqps://localhost:{port}?{query}",
        "dest-queue": "to",
    }
    local.request("PUT", "parameters/shovel/%2F/s", {"value": value})
    local.wait_up("s")
    assert take(channel(remote), "to", 1)[0][1] == b"x" * 300_000
    for recorder in (far, near):
        recorder.close()
    client.connection.close()
    local.stop()


def test_a_missing_file_is_named_and_is_read_when_it_exists(
    tmp_path: Path, files: Files, remote: BridgingBroker
) -> None:
    """Check that PEM files are read for each connection, and may be created or changed later."""
    ca, certificate = tmp_path / "later-ca.pem", tmp_path / "later-client.pem"
    port = remote.addresses["mqtts"].port
    table = bridge("b", 0, ["s/# out 1"], ca=str(ca), certificate=files.client, reconnect_max=1)
    text = table.replace("mqtt://127.0.0.1:0", f"mqtts://localhost:{port}")
    local = BridgingBroker(tmp_path / "local", text)
    query = f"cacertfile={files.ca}&certfile={certificate}"
    value = {
        "src-uri": "amqp://",
        "src-queue": "q",
        "dest-uri": f"amqps://localhost:{remote.addresses['amqps'].port}?{query}",
        "dest-queue": "to",
        "reconnect-delay": 0.2,
    }
    local.request("PUT", "parameters/shovel/%2F/s", {"value": value})
    for name, place in (
        ("b", f"the certificate authorities in {ca}"),
        ("s", f"its key in {certificate}"),
    ):
        row = local.wait(name, lambda row, place=place: place in row["error"])  # type: ignore[misc]
        assert row["state"] == "connecting" and "No such file" in row["error"]
    ca.write_bytes(Path(files.ca).read_bytes())
    certificate.write_bytes(Path(files.client).read_bytes())
    local.wait_up("b", "s")
    local.stop()
