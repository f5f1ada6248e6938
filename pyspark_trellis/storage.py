"""Stores the sink's files beside a checkpoint, on every file system that Spark can use.

    file:/data/checkpoint, /data/checkpoint       Python's own files
    s3a:, abfss:, hdfs:, dbfs:, viewfs: ...       Hadoop's API, in a Java process of its own

Rows go through local files, never through this process's memory. The module `hadoop_java` has the
Java process.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.hadoop_java import class_path, file_system, java_classes

#: The name of an option and of the capability of a file system that supports it. With the option,
#: creating a file fails if a file of this name exists when the writer has written all data.
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
_NO_FILE: Final = "java.io.FileNotFoundException"
#: Parts of Java's errors that mean: the classes of this file system are missing.
_NO_CLASSES: Final = ("ClassNotFoundException", "NoClassDefFoundError", "No FileSystem for scheme")
#: The error numbers (errno) of a file system without hard links.
_NO_LINKS: Final = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS)
_ADVICE: Final = (
    "all workers of Spark must be able to read and write the checkpoint and the files beside it"
)
_CLASSES_ADVICE: Final = (
    "name the jar files of this file system in spark.jars and, on a cluster, in spark.files, too"
)


class Storage:
    """A directory of files on some file system."""

    def put(self, local: Path, name: str) -> None:
        """Move a local file into the directory, under a name that no other file has ever had.

        On some file systems, other processes can see the file before all data is in it. So tell
        other processes the name only after this call has returned. Raises PipelineError.
        """
        raise NotImplementedError

    def fetched(self, name: str, scratch: Path) -> Path:
        """Return the path of a local file with the content of the file `name`.

        If a copy is needed, it is made in the directory `scratch`. Raises PipelineError.
        """
        raise NotImplementedError

    def write(self, name: str, text: str) -> None:
        """Create a small file atomically: it exists whole or not at all.

        If several processes create the same file at once, one of them succeeds. Raises
        PipelineError, for example if the file exists.
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
            raise _storage_error("write", str(self._path / name), error) from None

    def fetched(self, name: str, scratch: Path) -> Path:
        return self._path / name

    def write(self, name: str, text: str) -> None:
        file = self._path / name
        draft = file.with_name(f".{uuid4().hex}")
        try:
            self._file(name)
            draft.write_text(text, encoding="utf-8")
            try:
                os.link(draft, file)  # One step, which fails if the file exists.
            except OSError as error:
                if file.exists():
                    raise _already_exists(str(file)) from None
                if error.errno not in _NO_LINKS:
                    raise
                draft.replace(file)  # If two processes do this at once, both succeed.
        except OSError as error:
            raise _storage_error("write", str(file), error) from None
        finally:
            draft.unlink(missing_ok=True)

    def read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error("read", str(self._path / name), error) from None

    def exists(self, name: str) -> bool:
        try:
            return (self._path / name).exists()
        except OSError as error:  # Such as a parent that this user may not read.
            raise _storage_error("find", str(self._path / name), error) from None

    def make(self) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _storage_error("create", str(self._path), error) from None

    def directories(self) -> list[str]:
        try:
            return sorted(file.name for file in self._path.iterdir() if file.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _storage_error("list", str(self._path), error) from None

    def delete(self, name: str = "") -> None:
        path = self._path / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _storage_error("delete", str(path), error) from None


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
                "option hadoopSecrets must be a JSON object with settings of Hadoop, such as "
                '{"fs.s3a.endpoint": "..."}'
            ) from None

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return class_path()

    @property
    def _jvm(self) -> Any:
        """The classes of the Java process."""
        return java_classes(self._classes)

    @property
    def _files(self) -> Any:
        """The Java object of the Hadoop file system."""
        scheme, _, rest = self._url.partition(":")
        authority = f"//{rest[2:].partition('/')[0]}" if rest.startswith("//") else ""
        return file_system(self._classes, f"{scheme}:{authority}/", self._settings)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def _local_path(self, file: Path) -> Any:
        # Hadoop's Path takes the text of a URL without percent-encoding.
        return self._jvm.org.apache.hadoop.fs.Path(f"file://{file.absolute()}")

    def put(self, local: Path, name: str) -> None:
        # Write to the final name at once: on an object store, `rename` copies all rows once more.
        with _JavaErrors("write", f"{self._url}/{name}"):
            self._files.copyFromLocalFile(True, False, self._local_path(local), self._path(name))

    def fetched(self, name: str, scratch: Path) -> Path:
        copy = scratch / uuid4().hex
        with _JavaErrors("read", f"{self._url}/{name}"):
            # The last argument prevents a checksum file beside the copy.
            self._files.copyToLocalFile(False, self._path(name), self._local_path(copy), True)
        return copy

    def write(self, name: str, text: str) -> None:
        with _JavaErrors("write", f"{self._url}/{name}"):
            files, target = self._files, self._path(name)
            # HDFS renames in one step, and only if the target does not exist. An object store
            # copies instead, so of two processes that rename to one target at once, the second
            # would replace the file of the first. S3A therefore creates the file on a condition
            # that S3 itself checks (Hadoop 3.4.2 and later).
            if files.hasPathCapability(target, _CONDITIONAL):
                created = self._create_if_absent(files, target, text)
            else:
                created = self._rename_if_absent(files, target, name, text)
            if not created:
                raise _already_exists(f"{self._url}/{name}")

    def _create_if_absent(self, files: Any, target: Any, text: str) -> bool:
        """Create a file; return False if it exists."""
        try:
            builder = files.createFile(target).recursive().overwrite(False)
            stream = builder.must(_CONDITIONAL, True).build()
            try:
                stream.write(bytearray(text.encode()))
            except BaseException:
                stream.abort()  # `close` would create the file with a part of the text.
                raise
            stream.close()
        except Exception as error:
            if _java_error(error) is not None and files.exists(target):
                return False
            raise
        return True

    def _rename_if_absent(self, files: Any, target: Any, name: str, text: str) -> bool:
        """Write a file under another name, and rename it; return False if the target exists."""
        draft = self._path(f"{name}.{uuid4().hex}")
        try:
            stream = files.create(draft, False)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            # Some file systems return False if the target exists, others raise an error.
            if files.rename(draft, target):
                return True
        except Exception as error:
            with suppress(Exception):
                files.delete(draft, False)
            if _java_error(error) is not None and files.exists(target):
                return False
            raise
        files.delete(draft, False)
        return False

    def read(self, name: str) -> str | None:
        with _JavaErrors("read", f"{self._url}/{name}"):
            try:
                stream = self._files.open(self._path(name))
            except Exception as error:
                java_error = _java_error(error)
                if java_error is None or java_error.getClass().getName() != _NO_FILE:
                    raise
                return None
            try:
                data: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
        return bytes(data).decode()

    def exists(self, name: str) -> bool:
        with _JavaErrors("find", f"{self._url}/{name}"):
            return bool(self._files.exists(self._path(name)))

    def make(self) -> None:
        with _JavaErrors("create", self._url):
            self._files.mkdirs(self._path(""))

    def directories(self) -> list[str]:
        with _JavaErrors("list", self._url):
            files, path = self._files, self._path("")
            if not files.exists(path):
                return []
            return sorted(
                status.getPath().getName()
                for status in files.listStatus(path)
                if status.isDirectory()
            )

    def delete(self, name: str = "") -> None:
        with _JavaErrors("delete", f"{self._url}/{name}"):
            self._files.delete(self._path(name), True)


class _JavaErrors:
    """A context manager that replaces an error of Java by a PipelineError about `action`."""

    def __init__(self, action: str, location: str) -> None:
        self._action: Final = action
        self._location: Final = location

    def __enter__(self) -> None:
        """Do nothing: `__exit__` handles the errors of the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise PipelineError if the block has raised an error of Java or of py4j."""
        java_error = _java_error(error)
        if java_error is not None or type(error).__module__.startswith("py4j"):
            reason = java_error.toString() if java_error is not None else str(error)
            lacks_classes = any(part in reason for part in _NO_CLASSES)
            advice = _CLASSES_ADVICE if lacks_classes else _ADVICE
            raise _storage_error(self._action, self._location, reason, advice) from None


def _already_exists(location: str) -> PipelineError:
    """Return the error for a file that cannot be created because another process has created it."""
    return _storage_error(
        "write",
        location,
        "the file exists, so another process has written it",
        "give each query a checkpoint of its own, and do not run a query a second time before it "
        "has ended",
    )


def _storage_error(
    action: str, location: str, error: OSError | str, advice: str = _ADVICE
) -> PipelineError:
    reason = (error.strerror or error) if isinstance(error, OSError) else error
    return PipelineError(f"cannot {action} {location}: {reason}; {advice}")


def _java_error(error: BaseException | None) -> Any:
    """Return the Java object of an error that Java raised; None for any other error.

    In a process with a session of Spark, PySpark replaces an error of py4j by an error of its own,
    because it asks the session's JVM, which does not know the errors of this Java process. The
    original error is then the `__context__` of PySpark's error.
    """
    while error is not None and not isinstance(error, PipelineError):
        java_error = getattr(error, "java_exception", None)
        if java_error is not None:
            return java_error
        error = error.__context__
    return None


def storage_at(location: str, settings: str = "{}") -> Storage:
    """Return the directory at a path or URL. `settings` are settings of Hadoop, as JSON."""
    scheme, separator, _ = location.partition(":/")
    if not separator or scheme == "file" or "/" in scheme:
        return LocalStorage(location)
    return HadoopStorage(location, settings)
