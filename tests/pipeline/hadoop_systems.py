"""File systems of Hadoop for tests: `s3a` on moto, and `hdfs` in a Java process.

Maven fetches the classes (`hadoop/pom.xml`). Without Maven or Java, tests are skipped with a note.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from pyspark_trellis import java
from pyspark_trellis.errors import PipelineError
from tests.archive.s3_server import BUCKET, S3Server
from tests.broker import environment
from tests.foreign import lacks, require
from tests.interop.test_toolchains import BUILT, build
from tests.pipeline.spark_places import HOME
from trellis.parent_process import end_with_parent

HERE: Final = Path(__file__).parent / "hadoop"
#: The user who has a home directory in HDFS, and is not the user of the tests.
HDFS_USER: Final = "ann"
_MINICLUSTER: Final = "hadoop-client-minicluster"


@dataclass(frozen=True)
class HadoopSystem:
    """A running file system."""

    #: The URL of its root directory, without a slash at its end.
    root: str
    #: Hadoop's settings to reach it.
    settings: dict[str, str] = field(default_factory=dict)
    #: The jar files that Spark lacks for it.
    jars: tuple[str, ...] = ()

    def spark_settings(self) -> dict[str, str]:
        """Return the settings of a Spark session that uses this file system."""
        jars = ",".join(self.jars)
        named = {"spark.jars": jars, "spark.files": jars} if jars else {}
        return named | {f"spark.hadoop.{name}": value for name, value in self.settings.items()}


@cache
def _jars() -> tuple[str, ...]:
    """Fetch the jar files of s3a and HDFS in pyspark's version of Hadoop; return their paths.

    Maven fetches the dependencies of hadoop/pom.xml.
    """
    [client] = (HOME / "jars").glob("hadoop-client-api-*.jar")
    version = re.sub(r"hadoop-client-api-(.*)\.jar", r"\1", client.name)
    # Several test processes may fetch at the same time.
    output = BUILT / f"hadoop-{os.getpid()}"
    goal = ("dependency:build-classpath", f"-Dmdep.outputFile={output}")
    build([require("mvn"), "-q", "-B", f"-Dhadoop.version={version}", *goal], HERE)
    places = output.read_text().strip().split(os.pathsep)
    output.unlink()
    return tuple(places)


@contextmanager
def s3a() -> Iterator[HadoopSystem]:
    """Run moto (an S3 server) with an empty bucket, and yield the bucket as a file system."""
    pytest.importorskip("moto", reason="the extra [test] is not installed")
    jars = tuple(jar for jar in _jars() if _MINICLUSTER not in jar)
    server = S3Server()
    try:
        settings = {
            "fs.s3a.endpoint": f"http://127.0.0.1:{server.port}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": "test",
            "fs.s3a.secret.key": "test",
            # By default, a failure of the server would be retried for minutes.
            "fs.s3a.attempts.maximum": "3",
            "fs.s3a.retry.limit": "3",
        }
        yield HadoopSystem(f"s3a://{BUCKET}", settings, jars)
    finally:
        server.stop()


@contextmanager
def hdfs(scratch: Path) -> Iterator[HadoopSystem]:
    """Run HDFS with its data in the directory `scratch`, and yield the file system."""
    try:
        program = java.find() / "bin" / "java"
    except PipelineError as error:
        lacks("java", str(error))
    require("javac")  # Java compiles the program when it starts.
    [jar] = (jar for jar in _jars() if _MINICLUSTER in jar)
    logging = scratch / "log4j2.properties"
    logging.write_text("rootLogger.level = off\n")
    command = [program, "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dlog4j2.configurationFile={logging.as_uri()}"]
    command += ["-cp", os.pathsep.join([str(HOME / "jars" / "*"), jar]), HERE / "MiniHdfs.java"]
    with (scratch / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [str(word) for word in (*command, scratch / "data", HDFS_USER)],
            preexec_fn=end_with_parent,
            cwd=scratch,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, (scratch / "errors").read_text()[-4000:]
            yield HadoopSystem(url)
        finally:
            process.kill()


def python(code: str, **more: str) -> str:
    """Run code in a Python process with more environment variables; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
