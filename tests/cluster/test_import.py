"""A broker without a cluster does not import Kafka's client, and works without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trellis.app import join_cluster
from trellis.settings import Settings, SettingsError
from trellis.settings.cluster import ClusterSettings


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process; return the ended process with its output."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_broker_and_command_line_do_not_import_kafkas_client() -> None:
    done = run(
        "import sys, trellis.app, trellis.cli\n"
        "print([name for name in sys.modules if 'confluent' in name or 'trellis.cluster' in name])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_check_without_the_extra_names_it() -> None:
    done = run(
        "import sys\n"
        "sys.modules['confluent_kafka'] = None\n"
        "from trellis.cli import main\n"
        "arguments = ['--cluster-name', 'a', '--cluster-servers', '127.0.0.1:1']\n"
        "sys.exit(main(['cluster', 'check', *arguments]))"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("trellis: Kafka's client cannot be imported (")
    assert done.stderr.endswith("); pip install 'trellis-broker[cluster]'\n")


def test_a_node_without_a_name_of_its_own_does_not_join() -> None:
    """Check that a node with the default name is refused.

    Nodes report their offsets under their names, so each node needs a different name.
    """
    cluster = ClusterSettings(name="orders", servers="127.0.0.1:9092")
    with pytest.raises(SettingsError, match="'trellis' is the default; give each node"):
        join_cluster(Settings(cluster=cluster))


SERVE = """
import asyncio, sys
import msgspec
from trellis.app import App
from trellis.settings import Settings

listeners = {name: {"port": 0, "host": "127.0.0.1"} for name in ("amqp", "mqtt", "metrics", "http")}
settings = msgspec.convert({**listeners, "data": {"dir": sys.argv[1]}}, Settings)

async def main():
    app = App(settings)
    serving = asyncio.create_task(app.serve())
    await app.started.wait()
    app.stop()
    await serving

asyncio.run(main())
print([name for name in sys.modules if "confluent" in name or "trellis.cluster" in name])
"""


def test_broker_that_serves_without_a_cluster_has_not_imported_kafkas_client(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
