"""Tests of the pytest plugin of Trellis, which starts brokers for the tests of other projects.

The tests run the examples in docs/testing.md. They also check that a failed test shows the log of
its broker, and that no broker outlives the test run.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from trellis.testing.running import BrokerFailure, RunningBroker, Spawner

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "testing.md").read_text()
#: The examples of the page, by the heading above each.
EXAMPLES: Final = dict(
    re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)


#: Tests that fail: one because its broker has no message, the other because of its settings.
FAILING: Final = """
def test_no_message_comes(trellis):
    trellis.declare("q")
    assert not trellis.publish("", "absent", "x")
    trellis.expect("q", timeout=0)

def test_wrong_settings(trellis_factory):
    trellis_factory(mqtt_retaned=0)
"""
#: A test that runs before all others, because these use brokers.
IMPORTS: Final = """
import sys

def test_imports():
    assert not [name for name in sys.modules if name.startswith(("broker", "protocols"))]
    assert "trellis.testing.running" not in sys.modules
"""

#: In one process, because each process makes the run of `run` anew.
pytestmark = pytest.mark.xdist_group("testing plugin")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run the examples and the texts above in one pytest that has the plugin alone."""
    directory = tmp_path_factory.mktemp("project")
    texts = [IMPORTS, *EXAMPLES.values(), FAILING]
    for number, text in enumerate(texts):
        (directory / f"test_{number}.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "trellis.testing.plugin"],
        cwd=directory,
        env=os.environ
        | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
            "TRELLIS_MQTT_PORT": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def results(run: subprocess.CompletedProcess[str], number: int) -> set[str]:
    """Return the results of the tests in a file of `run`, such as PASSED."""
    found = set(re.findall(rf"^test_{number}\.py::\S+ ([A-Z]+)", run.stdout, re.MULTILINE))
    assert found, run.stdout + run.stderr
    return found


def test_the_page_has_an_example_for_each_client() -> None:
    assert list(EXAMPLES) == ["pika", "aio-pika", "paho-mqtt", "Celery", "A crash, and settings"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page_passes(run: subprocess.CompletedProcess[str], name: str) -> None:
    assert results(run, 1 + list(EXAMPLES).index(name)) == {"PASSED"}, run.stdout


def test_a_failed_test_shows_the_log_of_its_broker(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 1
    assert results(run, 1 + len(EXAMPLES)) == {"FAILED"}
    assert "no message came to queue 'q' within 0 s" in run.stdout
    assert "Log of Trellis 1" in run.stdout and " info start version=" in run.stdout
    assert "unknown argument --mqtt-retaned; the nearest flag is --mqtt-retained" in run.stdout


def test_the_plugin_imports_nothing_of_the_broker_before_a_test_asks(
    run: subprocess.CompletedProcess[str],
) -> None:
    assert results(run, 0) == {"PASSED"}, run.stdout


@pytest.fixture
def spawner() -> Spawner:
    return Spawner()


def test_a_broker_is_stopped_killed_and_started_on_the_same_ports(
    tmp_path: Path, spawner: Spawner
) -> None:
    broker = RunningBroker(spawner, tmp_path, {"data_dir": True})
    before = dict(broker.addresses)
    broker.api("PUT", "queues/%2F/kept", {"durable": True})
    broker.restart()
    assert broker.addresses == before and broker.api("GET", "queues/%2F/kept")["messages"] == 0
    broker.kill()
    broker.start()
    assert broker.addresses == before
    with pytest.raises(BrokerFailure, match="status 404"):
        broker.api("GET", "queues/%2F/absent")
    assert broker.log.count(" info start ") == 3
    spawner.close()


def test_brokers_end_with_the_spawner_even_if_it_is_killed(
    tmp_path: Path, spawner: Spawner
) -> None:
    broker = RunningBroker(spawner, tmp_path, {})
    process = spawner._process
    assert process is not None
    watched = os.pidfd_open(broker._pid)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert select.select([watched], [], [], 30)[0] == [watched]
    os.close(watched)
    with pytest.raises(BrokerFailure, match="the process that starts brokers ended"):
        spawner.ask(start=[], log=os.devnull)
