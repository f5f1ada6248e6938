"""Files beside a query's output, on every file system that a session can use.

A session with a JVM uses Hadoop's API in the JVM, with the session's settings. For a client of
Spark Connect, a task on the server uses `storage`, so the settings of an object store come from the
files of the server's HADOOP_CONF_DIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.spark_connect import is_connect
from pyspark_trellis.storage import storage_at


class SessionFiles:
    """The files that a session can use. Each method raises Spark's errors, and PipelineError."""

    def exists(self, directory: str, name: str) -> bool:
        """True if a directory has a file or directory of this name."""
        raise NotImplementedError

    def make(self, directory: str, name: str = "") -> None:
        """Create a directory, and an empty file `name` in this directory, unless they exist."""
        raise NotImplementedError


class JvmFiles(SessionFiles):
    """Files that the JVM of a session reads and writes."""

    def __init__(self, spark: Any) -> None:
        self._path: Final = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
        self._configuration: Final = spark.sparkContext._jsc.hadoopConfiguration()

    def exists(self, directory: str, name: str) -> bool:
        path = self._path(directory, name)
        return bool(path.getFileSystem(self._configuration).exists(path))

    def make(self, directory: str, name: str = "") -> None:
        path = self._path(directory)
        system = path.getFileSystem(self._configuration)
        if not system.mkdirs(path):
            raise PipelineError(
                f"cannot create the directory {directory}: check that Spark may write to its "
                "parent directory"
            )
        if name:
            system.createNewFile(self._path(directory, name))


class ServerFiles(SessionFiles):
    """Files that a server of Spark Connect reads and writes in a task."""

    def __init__(self, spark: Any) -> None:
        self._spark: Final = spark

    def exists(self, directory: str, name: str) -> bool:
        def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield _flag(storage_at(directory).exists(name))

        return self._answer(answer)

    def make(self, directory: str, name: str = "") -> None:
        def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                storage = storage_at(directory)
                storage.make()
                if name and not storage.exists(name):
                    storage.write(name, "")
                yield _flag(True)

        self._answer(answer)

    def _answer(self, task: Any) -> bool:
        one = self._spark.range(1).coalesce(1)
        return any(row[0] for row in one.mapInArrow(task, "flag boolean").collect())


def _flag(value: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"flag": [value]})


def files_of(spark: Any) -> SessionFiles:
    """Return the files that a session can use."""
    return ServerFiles(spark) if is_connect(spark) else JvmFiles(spark)
