"""The Spark that the tests use. The environment variable TRELLIS_SPARK chooses it:

local     (default) in the process of the tests and a JVM, `local[2]`
cluster   a standalone master and two workers, each a process of its own
connect   a server of Spark Connect, a process of its own; the tests are its client
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from pyspark_trellis import java
from pyspark_trellis.session import logging_file, start
from trellis.parent_process import end_with_parent

KIND: Final = os.environ.get("TRELLIS_SPARK", "local")
#: The master's URL of a query that starts a server of Spark Connect of its own.
OWN_SERVER: Final = "connect"
ROOT: Final = Path(__file__).parents[2]
HOME: Final = Path(pyspark.__file__).parent
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
#: Maximum number of lines that a daemon prints before it is ready.
_LINES: Final = 400
#: Settings of a driver on loopback, and of small executors. The first task waits until the
#: executors of both workers have started. Otherwise, one executor could run all tasks before the
#: other has started.
LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
_CLUSTERED: Final = "org.apache.spark.deploy"
#: The events of a daemon that have its address.
_ADDRESSES: Final = """logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
logger.connect.name = org.apache.spark.sql.connect.service
logger.connect.level = info
"""

assert KIND in ("local", "cluster", "connect"), f"TRELLIS_SPARK={KIND}"


@contextmanager
def daemon(
    command: Sequence[str | Path], until: str, scratch: Path, **environment: str
) -> Iterator[re.Match[str]]:
    """Run one of Spark's daemons with further environment variables, and end it after the block.

    Once the regular expression `until` matches the daemon's output, yield the match. The daemon's
    files are in the directory `scratch`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    logging = logging_file(scratch, "warn", "%p %c{1}: %m%n", _ADDRESSES)
    log = scratch / f"{len(list(scratch.iterdir()))}.log"
    inherited = {key: os.environ[key] for key in os.environ if not key.startswith("SPARK_")}
    inherited |= {
        "JAVA_HOME": str(java.find()),
        "JDK_JAVA_OPTIONS": f"{logging} -XX:+UseSerialGC",
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # functions of the tests run in workers
    }
    process = subprocess.Popen(
        list(map(str, command)),
        preexec_fn=end_with_parent,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, ExitStack() as stack:
        stack.callback(process.kill)
        lines = []
        for line in process.stderr:
            lines.append(line)
            match = re.search(until, line)
            if match is not None:
                break
            assert len(lines) < _LINES, "".join(lines)
        else:
            raise AssertionError("".join(lines))
        # Write the daemon's later output to a file: it cannot fill the pipe, and an error shows it.
        with log.open("wb") as file:
            keeper = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)
        yield match


@contextmanager
def cluster(scratch: Path, **environment: str) -> Iterator[str]:
    """Run a standalone master and two workers; yield the URL of the master.

    `environment` has further environment variables of the workers' Python.
    """
    program = HOME / "bin" / "spark-class"
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:

        def running(kind: str, until: str, *words: str, **more: str) -> re.Match[str]:
            command: list[str | Path] = [program, f"{_CLUSTERED}.{kind}", *place, *words]
            return stack.enter_context(daemon(command, until, scratch, **more))

        master = running("master.Master", r"(spark://127\.0\.0\.1:\d+)", "--port", "0")[1]
        for number in range(2):
            work = str(scratch / f"work{number}")
            size = ("--cores", "2", "--memory", "2G", "--work-dir", work)
            ready = "Successfully registered with master"
            running("worker.Worker", ready, *size, master, **environment)
        yield master


@contextmanager
def connect_server(scratch: Path, more: Mapping[str, str] = _NO_SETTINGS) -> Iterator[str]:
    """Run a server of Spark Connect, with more settings of Spark; yield its URL."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        **more,
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["--master", "local[2]", "--class", server, *words, "spark-internal"]
    until = r"server started at: \S*?:(\d+)"
    program = HOME / "bin" / "spark-submit"
    with daemon([program, *command], until, scratch, SPARK_DAEMON_MEMORY="1g") as match:
        yield f"sc://127.0.0.1:{match[1]}"


@contextmanager
def place(
    scratch: Path, kind: str = KIND, server_settings: Mapping[str, str] = _NO_SETTINGS
) -> Iterator[str]:
    """Yield the URL of a Spark master or Spark Connect server.

    `kind` is one of the values of TRELLIS_SPARK. Start the daemons of a cluster or server, and end
    them after the block. A server of Spark Connect gets `server_settings`.
    """
    if kind == "local":
        yield "local[2]"
    elif kind == "cluster":
        with cluster(scratch) as master:
            yield master
    else:
        with connect_server(scratch, server_settings) as url:
            yield url


def session(
    master: str, name: str, scratch: Path, more: Mapping[str, str] = _NO_SETTINGS
) -> SparkSession:
    """Start a Spark session for little data on the master or server with the URL `master`.

    `more` has further settings of Spark.
    """
    settings = (LOOPBACK if master.startswith("spark://") else {}) | dict(more)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return start(master, name, small=True, scratch=scratch, settings=settings)
