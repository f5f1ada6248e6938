"""Tests of the pytest plugin of Trellis, which starts brokers for the tests of other projects.

The tests run the examples in docs/testing.md. They also check that a failed test shows the log of
its broker, and that no broker outlives the test run.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from trellis.testing.running import RunningBroker
from trellis.testing.starting import BrokerFailure, Spawner

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "testing.md").read_text()
#: The examples of the page, by the heading above each.
EXAMPLES: Final = dict(
    re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)


#: Tests that fail: one because no message comes, the other because of its settings.
FAILING: Final = """
def test_no_message_comes(trellis):
    trellis.declare("q")
    assert not trellis.publish("", "absent", "x")
    trellis.expect("q", timeout=0)

def test_wrong_settings(trellis_factory):
    trellis_factory(mqtt_retaned=0)
"""


def run_pytest(directory: Path, *flags: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run test files in a directory of its own, with the plugin alone.

    `files` maps a name, such as `it` for `test_it.py`, to the text of the file.
    """
    for name, text in files.items():
        (directory / f"test_{name}.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "trellis.testing.plugin", *flags],
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


def test_the_page_has_an_example_for_each_client() -> None:
    assert list(EXAMPLES) == ["pika", "aio-pika", "paho-mqtt", "Celery", "A crash, and settings"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run the examples and the failing tests together: each run of pytest starts processes."""
    files = {f"example_{number}": text for number, text in enumerate(EXAMPLES.values())}
    return run_pytest(tmp_path_factory.mktemp("project"), "-v", **files, failing=FAILING)


#: In one process, because each process would run `project` anew.
in_one_process: Final = pytest.mark.xdist_group("testing plugin")


@in_one_process
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page_passes(
    project: subprocess.CompletedProcess[str], name: str
) -> None:
    file = f"test_example_{list(EXAMPLES).index(name)}.py"
    results = re.findall(rf"^{file}::\S+ (\w+)", project.stdout, re.MULTILINE)
    assert set(results) == {"PASSED"}, project.stdout + project.stderr


@in_one_process
def test_a_failed_test_shows_the_log_of_its_broker(
    project: subprocess.CompletedProcess[str],
) -> None:
    assert project.returncode == 1
    assert set(re.findall(r"^FAILED (test_\w+)\.py", project.stdout, re.MULTILINE)) == {
        "test_failing"
    }
    assert "no message came to queue 'q' within 0 s" in project.stdout
    assert "Log of Trellis 1" in project.stdout and " info start version=" in project.stdout
    assert "unknown argument --mqtt-retaned; the nearest flag is --mqtt-retained" in project.stdout


#: Test code that records whether the process that starts brokers runs when the file is imported.
RECORD: Final = """
import sys

STARTED = "trellis.testing.starting" in sys.modules
"""


def test_the_plugin_starts_and_imports_nothing_if_no_test_requests_a_broker(tmp_path: Path) -> None:
    text = f"""{RECORD}
def test_imports():
    assert not [name for name in sys.modules if name.startswith(("broker", "protocols"))]
    assert not STARTED and "trellis.testing.starting" not in sys.modules
"""
    done = run_pytest(tmp_path, it=text)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [[], ["test_it.py::test_two"]])
@pytest.mark.parametrize(
    "request_text", ["def test_two(tmp_path, trellis):", "def test_two(trellis_factory):"]
)
def test_the_process_starts_before_the_file_is_imported(
    tmp_path: Path, request_text: str, arguments: list[str]
) -> None:
    text = f"{RECORD}\n{request_text}\n    assert STARTED\n"
    done = run_pytest(tmp_path, *arguments, it=text)
    assert done.returncode == 0, done.stdout


def test_the_process_starts_for_a_fixture_of_a_module_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['fixtures.shared']\n")
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures" / "shared.py").write_text("""
import pytest

@pytest.fixture
def orders(trellis):
    trellis.declare("orders")
    return trellis
""")
    text = f"""{RECORD}
def test_started_after_the_import_and_before_the_first_test():
    assert not STARTED and "trellis.testing.starting" in sys.modules

def test_orders(orders):
    assert orders.publish("", "orders", "x")
"""
    done = run_pytest(tmp_path, "test_it.py", it=text)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("flags", [["--collect-only"], ["-p", "xdist", "-n", "1"]])
def test_a_process_that_runs_no_test_starts_nothing(tmp_path: Path, flags: list[str]) -> None:
    """Check that a process which runs no test does not import the code that starts brokers.

    Such processes are pytest with --collect-only, and the controlling process of pytest-xdist.
    """
    (tmp_path / "conftest.py").write_text("""
import sys

def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        print("started:", "trellis.testing.starting" in sys.modules)
""")
    done = run_pytest(tmp_path, "test_it.py", *flags, it="def test_one(trellis): pass")
    assert done.returncode == 0 and "started: False" in done.stdout, done.stdout


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


def test_the_ports_of_a_stopped_broker_stay_reserved(tmp_path: Path, spawner: Spawner) -> None:
    broker = RunningBroker(spawner, tmp_path, {})
    broker.stop()
    for address in broker.addresses.values():
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
    broker.start()
    broker.declare("q")
    spawner.close()


def children(pid: int) -> list[int]:
    """Return the numbers of the child processes of a process with one thread."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_broker_uses_forked_gateways_and_starts_another_after_a_failure(
    tmp_path: Path, spawner: Spawner
) -> None:
    broker = RunningBroker(spawner, tmp_path, {})
    process = spawner._process
    assert process is not None
    assert children(process.pid) == [broker._pid]
    broker.declare("q")
    [gateway] = set(children(process.pid)) - {broker._pid}
    watched = os.pidfd_open(gateway)
    os.kill(gateway, signal.SIGKILL)
    assert select.select([watched], [], [], 30)[0] == [watched]
    os.close(watched)
    broker.declare("other")
    assert "warning http_gateway_lost status=-9" in broker.log
    assert len(children(process.pid)) == 2 and gateway not in children(process.pid)
    broker.close()
    assert children(process.pid) == []
    spawner.close()


def test_a_broker_that_ended_by_itself_can_be_started_again(
    tmp_path: Path, spawner: Spawner
) -> None:
    broker = RunningBroker(spawner, tmp_path, {})
    other = tmp_path / "other"
    other.mkdir()
    watched = os.pidfd_open(broker._pid)
    os.kill(broker._pid, signal.SIGKILL)
    assert select.select([watched], [], [], 30)[0] == [watched]
    os.close(watched)
    RunningBroker(spawner, other, {}).close()
    broker.restart()
    broker.declare("q")
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
