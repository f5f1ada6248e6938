"""Stores the sink's files beside a checkpoint, on every file system that Spark can use.

    file:/data/checkpoint, /data/checkpoint       Python's own files
    s3a:, abfss:, hdfs:, dbfs:, viewfs: ...       Hadoop's API, in a Java process of its own

The Java process starts at the first use and ends with this process. It has Spark's classes, the
files of `spark.jars` on this machine, and Hadoop's configuration: the files of HADOOP_CONF_DIR, and
the settings of the option `hadoopSecrets`. Rows go through local files, never through this
process's memory.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark_trellis import java
from pyspark_trellis.errors import PipelineError

#: The options of the Java process: little memory, and a fast start.
_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Storage:
    """A directory of files on some file system."""

    def put(self, local: Path, name: str) -> None:
        """Move a local file into the directory, under this name. Raises PipelineError."""
        raise NotImplementedError

    def fetched(self, name: str, scratch: Path) -> Path:
        """Return the path of a local file with the content of the file `name`.

        If a copy is needed, it is made in the directory `scratch`. Raises PipelineError.
        """
        raise NotImplementedError

    def write(self, name: str, text: str) -> None:
        """Create a small file atomically: it exists whole or not at all.

        Each name may be written only once, because few file systems can replace a file in one
        step. Raises PipelineError.
        """
        raise NotImplementedError

    def read(self, name: str) -> str | None:
        """Return the content of a small file; None if it does not exist. Raises PipelineError."""
        raise NotImplementedError

    def exists(self, name: str) -> bool:
        """True if there is a file or directory of this name. Raises PipelineError."""
        raise NotImplementedError

    def make(self) -> None:
        """Create this directory, unless it exists. Raises PipelineError."""
        raise NotImplementedError

    def directories(self) -> list[str]:
        """Return the names of the directories in this directory. Raises PipelineError."""
        raise NotImplementedError

    def delete(self, name: str = "") -> None:
        """Delete a file, or a directory with its content. If `name` is "", delete this directory.

        Do nothing if the file or directory does not exist. Raises PipelineError.
        """
        raise NotImplementedError


class LocalStorage(Storage):
    """A directory of this machine, or one that is mounted on all machines."""

    def __init__(self, path: str) -> None:
        self._path: Final = Path(path.removeprefix("file://").removeprefix("file:")).absolute()

    def _file(self, name: str) -> Path:
        file = self._path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def put(self, local: Path, name: str) -> None:
        try:
            file = self._file(name)
            draft = file.with_name(f".{uuid4().hex}")
            shutil.move(local, draft)
            draft.replace(file)
        except OSError as error:
            raise _failed("write", str(self._path / name), error) from None

    def fetched(self, name: str, scratch: Path) -> Path:
        return self._path / name

    def write(self, name: str, text: str) -> None:
        try:
            file = self._file(name)
            draft = file.with_name(f".{uuid4().hex}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)
        except OSError as error:
            raise _failed("write", str(self._path / name), error) from None

    def read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed("read", str(self._path / name), error) from None

    def exists(self, name: str) -> bool:
        try:
            return (self._path / name).exists()
        except OSError as error:  # Such as a parent that this user may not read.
            raise _failed("find", str(self._path / name), error) from None

    def make(self) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed("create", str(self._path), error) from None

    def directories(self) -> list[str]:
        try:
            return sorted(file.name for file in self._path.iterdir() if file.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed("list", str(self._path), error) from None

    def delete(self, name: str = "") -> None:
        path = self._path / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _failed("delete", str(path), error) from None


class HadoopStorage(Storage):
    """A directory on a file system of Hadoop."""

    def __init__(self, url: str, settings: str = "{}") -> None:
        """Create the storage of a directory; `settings` are settings of Hadoop, as JSON.

        Raises PipelineError.
        """
        self._url: Final = url.rstrip("/")
        try:
            self._settings: Final = tuple(
                sorted((name, str(value)) for name, value in json.loads(settings).items())
            )
        except (ValueError, AttributeError):
            raise PipelineError(
                "option hadoopSecrets should be a JSON object with settings of Hadoop, such as "
                '{"fs.s3a.endpoint": "..."}'
            ) from None

    @property
    def _files(self) -> Any:
        """The Java object of the Hadoop file system."""
        jvm = _gateway().jvm
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        for name, value in self._settings:
            configuration.set(name, value)
        return self._path("").getFileSystem(configuration)

    def _path(self, name: str) -> Any:
        url = f"{self._url}/{name}" if name else self._url
        return _gateway().jvm.org.apache.hadoop.fs.Path(url)

    def put(self, local: Path, name: str) -> None:
        with _Failing("write", f"{self._url}/{name}"):
            draft, target = self._path(f"{name}.{uuid4().hex}"), self._path(name)
            source = _gateway().jvm.org.apache.hadoop.fs.Path(local.absolute().as_uri())
            files = self._files
            files.mkdirs(target.getParent())
            files.copyFromLocalFile(True, True, source, draft)
            _rename(files, draft, target)

    def fetched(self, name: str, scratch: Path) -> Path:
        copy = scratch / uuid4().hex
        with _Failing("read", f"{self._url}/{name}"):
            target = _gateway().jvm.org.apache.hadoop.fs.Path(copy.absolute().as_uri())
            # Without a checksum file beside the copy.
            self._files.copyToLocalFile(False, self._path(name), target, True)
        return copy

    def write(self, name: str, text: str) -> None:
        with _Failing("write", f"{self._url}/{name}"):
            draft, target = self._path(f"{name}.{uuid4().hex}"), self._path(name)
            files = self._files
            files.mkdirs(target.getParent())
            stream = files.create(draft, False)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            _rename(files, draft, target)

    def read(self, name: str) -> str | None:
        with _Failing("read", f"{self._url}/{name}"):
            files, path = self._files, self._path(name)
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                data: bytes = _gateway().jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
        return bytes(data).decode()

    def exists(self, name: str) -> bool:
        with _Failing("find", f"{self._url}/{name}"):
            return bool(self._files.exists(self._path(name)))

    def make(self) -> None:
        with _Failing("create", self._url):
            self._files.mkdirs(self._path(""))

    def directories(self) -> list[str]:
        with _Failing("list", self._url):
            files, path = self._files, self._path("")
            if not files.exists(path):
                return []
            return sorted(
                status.getPath().getName()
                for status in files.listStatus(path)
                if status.isDirectory()
            )

    def delete(self, name: str = "") -> None:
        with _Failing("delete", f"{self._url}/{name}"):
            self._files.delete(self._path(name), True)


def _rename(files: Any, draft: Any, target: Any) -> None:
    """Rename a file.

    The target must not exist, because few file systems can replace a file in one step.
    """
    if not files.rename(draft, target):
        raise _failed(
            "write", target.toString(), "the file exists; does another query use this checkpoint?"
        )


class _Failing:
    """A context manager that turns errors of Java into a PipelineError with action and file."""

    def __init__(self, action: str, place: str) -> None:
        self._action: Final = action
        self._place: Final = place

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise PipelineError for an error of Java."""
        if error is not None and type(error).__module__.startswith("py4j"):
            java_error = getattr(error, "java_exception", None)
            reason = java_error.toString() if java_error is not None else str(error)
            raise _failed(self._action, self._place, reason) from None


def _failed(action: str, place: str, error: OSError | str) -> PipelineError:
    reason = (error.strerror or error) if isinstance(error, OSError) else error
    return PipelineError(
        f"cannot {action} {place}: {reason}; all workers of Spark must be able to read and write "
        "the checkpoint and the files beside it"
    )


@lru_cache(maxsize=1)
def _gateway() -> Any:
    """Return the connection to the Java process, which is started if necessary."""
    import pyspark

    java_gateway: Any = import_module("py4j.java_gateway")
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    jars = Path(home, "jars")
    py4j = sorted(jars.glob("py4j-*.jar"))
    if not py4j:
        raise PipelineError(
            f"Spark's Java classes are not in {jars}: set SPARK_HOME on every machine, or use a "
            "checkpointLocation in a directory that is mounted on all machines"
        )
    places = [os.environ.get("HADOOP_CONF_DIR", ""), str(jars / "*"), *_added_jars()]
    port, token = java_gateway.launch_gateway(
        jarpath=str(py4j[0]),
        classpath=os.pathsep.join(place for place in places if place),
        javaopts=list(_JAVA_OPTIONS),
        die_on_exit=True,
        java_path=str(java.find() / "bin" / "java"),
        enable_auth=True,
    )
    return java_gateway.JavaGateway(
        gateway_parameters=java_gateway.GatewayParameters(
            port=port, auth_token=token, auto_convert=True
        )
    )


def _added_jars() -> list[str]:
    """Return the class path of the jar files that were added to the session (`spark.jars`)."""
    from pyspark import SparkFiles

    try:
        return [str(Path(SparkFiles.getRootDirectory(), "*"))]
    except (AssertionError, AttributeError, TypeError):
        return []  # This code does not run in a task.


def storage_at(place: str, settings: str = "{}") -> Storage:
    """Return the directory at a path or URL. `settings` are settings of Hadoop, as JSON."""
    scheme, separator, _ = place.partition(":/")
    if not separator or scheme == "file" or "/" in scheme:
        return LocalStorage(place)
    return HadoopStorage(place, settings)
