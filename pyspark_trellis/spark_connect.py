"""Clients of Spark Connect (`sc://HOST:PORT`): this process has no SparkContext and no JVM.

is_connect    True if a session is such a client
connected     a session of a server, which gets the code of the Python workers as a zip file
sent          a value for Python workers: broadcast, or uploaded as a file
"""

from __future__ import annotations

import hashlib
import pickle
import socket
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pyspark_trellis.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The scheme of the URL of a server.
SCHEME: Final = "sc://"
#: The port of a server whose URL has none.
_PORT: Final = 15002
#: Seconds to wait for the server's port. (Spark itself retries for ten minutes.)
_PATIENCE: Final = 10.0


def is_connect(spark: SparkSession) -> bool:
    """True if the session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def connected(url: str, name: str, settings: dict[str, str], code: Path) -> SparkSession:
    """Return a session of the server at `url` (`sc://HOST:PORT`).

    `settings` are settings of the session; the server ignores settings that are fixed at its start.
    `code` is a zip file with the code of the Python workers. Raises PipelineError.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
        with socket.create_connection((host, port), _PATIENCE):
            pass
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"no connection to Spark Connect at {url}: {error}; start the server, or correct the "
            "URL (sc://HOST:PORT)"
        ) from None
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote(url).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
        spark.addArtifacts(str(code), pyfile=True)
    except ImportError as error:
        raise PipelineError(
            f"a client of Spark Connect needs further packages: pip install 'pyspark[connect]' "
            f"({str(error).partition(chr(10))[0]})"
        ) from None
    return spark


class SentValue:
    """A value that the functions in Python workers use."""

    @property
    def value(self) -> Any:
        """The value; read this property in a worker only."""
        raise NotImplementedError


class BroadcastValue(SentValue):
    """A value that Spark broadcasts."""

    def __init__(self, broadcast: Any) -> None:
        self._broadcast: Final = broadcast

    @property
    def value(self) -> Any:
        return self._broadcast.value


class UploadedValue(SentValue):
    """A value in a file that was uploaded to a server of Spark Connect."""

    def __init__(self, name: str) -> None:
        self._name: Final = name

    @property
    def value(self) -> Any:
        from pyspark import SparkFiles

        return _loaded(SparkFiles.get(self._name))


@lru_cache(maxsize=4)
def _loaded(path: str) -> Any:
    """Return the value in a file. A worker reads each file once: a file's name has its checksum."""
    return pickle.loads(Path(path).read_bytes())


def sent(spark: SparkSession, value: object) -> SentValue:
    """Send a value, which pickle can write, to a session's workers; return the sent value."""
    if not is_connect(spark):
        return BroadcastValue(spark.sparkContext.broadcast(value))
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    name = f"trellis-{hashlib.sha256(data).hexdigest()[:32]}.pickle"
    with tempfile.TemporaryDirectory(prefix="trellis-pipeline-") as scratch:
        file = Path(scratch, name)
        file.write_bytes(data)
        spark.addArtifacts(str(file), file=True)
    return UploadedValue(name)
