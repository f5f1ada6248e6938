"""Tests the image's target `pipeline` and the compose profile `spark` without a container engine.

The image's steps run in a directory, then the commands of docker-compose.yml, with paths below that
directory and names that resolve to loopback.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pika
import pyarrow.parquet as pq
import pytest
import yaml

from pyspark_trellis.publisher import Outgoing, SinkPublisher
from tests.broker import BrokerProcess
from tests.pipeline.test_exactly_once import committed, session_of
from trellis.parent_process import end_with_parent

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final[dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())[
    "services"
]
#: Seconds that each step may take.
PATIENCE: Final = 240
MESSAGES: Final = 3_000


class Image:
    """A directory in place of the container image: it has the files that the image has in /."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stage = (
            (ROOT / "Dockerfile").read_text().partition(" AS pipeline\n")[2].partition("\nFROM ")[0]
        )

    def here(self, text: str, master: str = "") -> str:
        """Return the text with the image's paths replaced by paths below the directory.

        The address of the Spark master becomes `master`, on loopback.
        """
        text = text.replace("spark://spark-master:7077", master) if master else text
        text = re.sub(r"(?<![\w/])/(?=(?:opt|var/lib|tmp)/)", f"{self.directory}/", text)
        return "127.0.0.1" if text == "spark-master" else text

    def build(self) -> None:
        """Run the build steps of the image in the directory.

        Trellis is not compiled, and the steps that create users are left out.
        """
        opt = self.directory / "opt"
        opt.mkdir()
        # PYTHONPATH would make modules of this checkout importable that are not installed.
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH"
        } | {"TRELLIS_PURE": "1", "PYTHON": sys.executable}
        subprocess.run(
            [ROOT / "tools" / "make-venv.sh", opt / "trellis"],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        pip = [
            str(opt / "trellis" / "bin" / "python"),
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--wheel-dir", str(opt / "wheels"), str(ROOT)],
            env=environment,
            check=True,
        )
        [wheel] = (opt / "wheels").glob("*.whl")
        subprocess.run([*pip, "install", str(wheel)], env=environment, check=True)
        [step] = re.findall(r"/opt/pipeline-build\.sh (/.*)$", self.stage, re.MULTILINE)
        subprocess.run(
            [ROOT / "tools" / "pipeline-build.sh", *self.here(step).split(" ")],
            cwd=self.directory,
            env=environment,
            check=True,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of a stage: its ENV, a PATH without another Java, and free ports
        on loopback."""
        [lines] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", self.stage, re.MULTILINE)
        variables = dict(word.split("=", 1) for word in lines.replace("\\\n", " ").split())
        environment = {
            name: self.here(value.strip('"').replace("${PATH}", "/usr/bin:/bin"))
            for name, value in variables.items()
        }
        environment["PATH"] = ":".join(
            self.here(each)
            for each in variables["PATH"].strip('"').replace("${PATH}", "/usr/bin:/bin").split(":")
        )
        free = dict.fromkeys(
            (
                "SPARK_MASTER_PORT",
                "SPARK_MASTER_WEBUI_PORT",
                "SPARK_WORKER_PORT",
                "SPARK_WORKER_WEBUI_PORT",
            ),
            "0",
        )
        return (
            {
                "HOME": str(self.directory),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            }
            | free
            | environment
        )

    @contextmanager
    def service(
        self, name: str, master: str = ""
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Run the program of a compose service; yield (process, file with its output).

        At the end of the block, kill all processes of the program.
        """
        service = SERVICES[name]
        [entrypoint] = re.findall(r"^ENTRYPOINT \[(.*)\]$", self.stage, re.MULTILINE)
        words = [
            *service.get("entrypoint", re.findall(r'"(.*?)"', entrypoint)),
            *service["command"],
        ]
        program, *arguments = [self.here(word, master) for word in words]
        log = self.directory / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    program if "/" in program else self.directory / "opt/trellis/bin" / program,
                    *arguments,
                ],
                preexec_fn=end_with_parent,
                env=self.environment(),
                cwd=self.directory / "var/lib/pipeline",
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            for process_id in session_of(process.pid):
                try:
                    os.kill(process_id, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()


def until(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> re.Match[str]:
    """Wait until the output of a service matches the expression `pattern`; return the match."""
    end = time.monotonic() + PATIENCE
    while (match := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < end, log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)
    return match


def counted(table: Path) -> int:
    """Return the total of the column `messages` in the committed files of a table that the job
    `traffic` wrote."""
    return sum(
        sum(pq.read_table(file, columns=["messages"]).column("messages").to_pylist())
        for file in committed(table)
    )


@pytest.mark.long
def test_the_images_steps_and_the_composed_services_make_a_table_of_traffic(tmp_path: Path) -> None:
    image = Image(tmp_path)
    image.build()
    state, target = tmp_path / "var/lib/trellis", tmp_path / "var/lib/pipeline/traffic"
    target.parent.mkdir(parents=True)
    broker = BrokerProcess("--data-dir", str(state))
    with ExitStack() as stack:
        stack.callback(broker.kill)
        host, port = broker.addresses["http"]
        words = [
            word.replace("/etc/trellis/", f"{ROOT}/config/spark/").replace(
                "http://trellis:15672", f"http://{host}:{port}"
            )
            for word in SERVICES["journal"]["command"]
        ]
        subprocess.run([sys.executable, "-m", "trellis", *words], cwd=ROOT, check=True)
        master, log = stack.enter_context(image.service("spark-master"))
        url = until(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", master)[1]
        worker, log = stack.enter_context(image.service("spark-worker", url))
        until(log, "Successfully registered with master", worker)
        job, log = stack.enter_context(image.service("pipeline", url))
        until(log, "waiting for the first message", job)
        durable = pika.BasicProperties(delivery_mode=2)
        publish = SinkPublisher(broker.amqp_url).publish
        publish(Outgoing("amq.topic", f"t.{at % 7}", b"x", durable) for at in range(MESSAGES))
        end = time.monotonic() + PATIENCE
        while counted(target) < MESSAGES:
            assert job.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.2)
        assert counted(target) == MESSAGES
        job.send_signal(getattr(signal, SERVICES["pipeline"]["stop_signal"]))
        assert job.wait(PATIENCE) == 0, log.read_text()[-4000:]
        assert "stopped; to continue, run" in log.read_text()
        for daemon in (worker, master):
            daemon.terminate()
            assert daemon.wait(PATIENCE) in (0, 128 + signal.SIGTERM)
