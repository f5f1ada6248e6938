"""Tests that each connection to Kafka uses the TLS and login options of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.replication.contract import LogSpan, LogUnreachable
from broker.replication.report import NodeReport
from tests.addresses import own_address
from tests.authority import Authority
from tests.cluster.conftest import OpenLog, created
from tests.cluster.programs import Kfake
from trellis.cluster.kafka_log import KafkaLog
from trellis.settings.cluster import ClusterSettings


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Kfake]:
    """Start a kfake with TLS and logins."""
    process = Kfake(f"certificate={authority.sign(own_address())}", "login=ann:hunter2")
    yield process
    process.close()


def cluster_with(kfake: Kfake, name: str, authority: Path, password: str) -> ClusterSettings:
    options: dict[str, object] = {
        "security.protocol": "SASL_SSL",
        "ssl": {"ca": {"location": str(authority)}},
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": password,
    }
    return ClusterSettings(name=name, servers=kfake.servers, options=options)


def test_log_over_tls_with_a_login(
    secured: Kfake, name: str, authority: Authority, open_log: OpenLog
) -> None:
    log = open_log(created(cluster_with(secured, name, authority.file, "hunter2")), "one")
    assert log.append(b"a") == 0
    assert log.read(0) == LogSpan([(0, b"a")], 1)
    log.report(NodeReport(1, "0.1.0"))
    assert log.reports() == {"one": NodeReport(1, "0.1.0")}


@pytest.mark.usefixtures("brief_requests")
@pytest.mark.parametrize(
    ("trusted", "password", "reason"),
    [(True, "wrong", "SASL authentication error"), (False, "hunter2", "certificate verify failed")],
)
def test_refused_login_or_certificate_is_in_the_log_lines(
    secured: Kfake,
    name: str,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    trusted: bool,
    password: str,
    reason: str,
) -> None:
    file = authority.file if trusted else Authority(tmp_path / "other").file
    log = KafkaLog(cluster_with(secured, name, file, password), "one")
    with pytest.raises(LogUnreachable):
        log.connect()
    log.close()
    lines = [record.message for record in caplog.records]
    assert any(line.startswith("kafka client client=admin") and reason in line for line in lines)
    assert "hunter2" not in caplog.text
