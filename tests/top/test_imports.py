"""Tests that a broker imports no module that its settings do not need, and when it imports others.

The start of a broker is mostly imports: each module takes 0.1 ms, and some packages take 10 ms.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.broker import command, environment

#: Seconds that a broker may take to stop.
_STOP = 20


def imported_by_serve(*flags: str) -> set[str]:
    """Return the modules that `trellis serve` imports until it is stopped."""
    executable, *rest = command(*flags)
    process = subprocess.Popen(
        [executable, "-X", "importtime", *rest],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=_STOP)
    finally:
        process.kill()
        process.wait()
    return {
        line.rpartition("|")[2].strip()
        for line in log.splitlines()
        if line.startswith("import time:")
    }


def test_the_default_start_does_not_import_optional_matcher_packages(tmp_path: Path) -> None:
    modules = imported_by_serve("--data-dir", str(tmp_path))
    assert "matching.registry" in modules
    optional = {"pyroaring", "cereggii", "numpy", "matching.bitmap", "matching.bitmap_fixed"}
    assert not optional & modules


#: The modules that a broker in memory, with the default settings, does not need at its start, and
#: the settings or requests that need them.
UNNEEDED: Final = {
    "importlib.metadata": "telemetry.enabled",
    "sqlite3": "data.dir",
    "broker.store.durable": "data.dir",
    "broker.definitions.restore": "data.dir",
    "trellis.server.durable_store_writer": "data.dir",
    "broker.replication.records": "cluster.servers",
    "broker.replication.contract": "cluster.servers",
    "trellis.standby": "cluster.servers",
    "trellis.switching": "cluster.servers",
    "trellis.archive.service": "stream.archive",
    "trellis.auth.tokens.authenticator": "jwt.keys",
    "trellis.telemetry.service": "telemetry.enabled",
    "trellis.http.answering": "the first request to the HTTP API",
    "trellis.http.management.api": "the first request to the HTTP API",
}


def test_a_broker_in_memory_imports_nothing_for_other_settings() -> None:
    modules = imported_by_serve("--data-dir", ":memory:")
    assert "argon2" in modules  # A user with a password can log in.
    assert not UNNEEDED.keys() & modules


def test_a_data_directory_imports_the_durable_store_at_the_start(tmp_path: Path) -> None:
    modules = imported_by_serve("--data-dir", str(tmp_path))
    needed = {name for name, setting in UNNEEDED.items() if setting == "data.dir"}
    assert needed <= modules


def run_script(script: str) -> str:
    """Return the output of a script that runs in a new process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
        timeout=60,
    ).stdout


def test_the_modules_of_the_api_are_imported_in_small_steps() -> None:
    """The event loop runs between two steps, so no step may import many modules."""
    steps = json.loads(
        run_script("""
        import json, sys
        from importlib import import_module
        import trellis.app
        from trellis.http.gateway_process import API_MODULES
        steps = []
        for module in (*API_MODULES, "trellis.http.answering", "trellis.http.management.api"):
            before = len(sys.modules)
            import_module(module)
            steps.append(len(sys.modules) - before)
        print(json.dumps(steps))
        """)
    )
    assert max(steps) <= 15 and steps[-2:] == [0, 0]
    assert sum(steps) > 50 and all(steps[:-2])


def test_the_api_starts_later_if_no_file_descriptor_is_free() -> None:
    """The import of its modules fails, is logged, and succeeds when descriptors are free again."""
    output = run_script(r"""
        import asyncio, logging, os, resource, socket, sys
        from tests.top.running import Running, settings

        class Lines(logging.Handler):
            def __init__(self):
                super().__init__()
                self.lines = []

            def emit(self, record):
                self.lines.append(record.getMessage())

        async def main():
            log = Lines()
            logging.getLogger("trellis").addHandler(log)
            running = Running(settings())
            await running.start()
            # The event loop learns of this client when it has no free descriptor any more.
            client = socket.create_connection(("127.0.0.1", running.port("http")))
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            await running.until(lambda: any("http_gateway_not" in line for line in log.lines))
            print("trellis.http.answering" in sys.modules)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in held:
                os.close(descriptor)
            loop = asyncio.get_running_loop()
            request = b"GET /api/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            await loop.sock_sendall(client, request)
            async with asyncio.timeout(30):
                print((await loop.sock_recv(client, 1000))[:12].decode())
            client.close()
            await running.stop()

        asyncio.run(main())
    """)
    lines = [line for line in output.splitlines() if not line.startswith("ready")]
    assert lines == ["False", "HTTP/1.1 401"]


def test_a_bitmap_matcher_imports_pyroaring() -> None:
    pytest.importorskip("pyroaring")
    program = (
        "import sys\n"
        "from matching import AMQP, create\n"
        "before = 'pyroaring' in sys.modules\n"
        "create('bitmap', AMQP)\n"
        "print(before, 'pyroaring' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stdout == "False True\n"
