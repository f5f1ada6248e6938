"""Creates a Spark session on this machine (`local[*]`), on a cluster (`spark://HOST:PORT`) or on a
server of Spark Connect (`sc://HOST:PORT`). Cluster and server receive this code as a zip file.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from pyspark_trellis import java, spark_connect
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.source import DefaultSource

#: The packages that workers import.
SHIPPED: Final = ("matching", "pyspark_trellis")
#: The name of the zip file of the code.
_ZIP: Final = "trellis-pipeline.zip"
_ROOT: Final = Path(__file__).resolve().parents[1]
#: The supported versions of packages: (package, lowest version, first version that is not
#: supported).
_NEEDED: Final = (
    ("pyspark", (4, 2), (5,)),
    ("pandas", (2, 2), (3,)),
    ("pyarrow", (18,), (99,)),
    ("numpy", (2,), (3,)),
)
#: Settings of the session, which the user's own settings replace.
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
#: JVM options for a fast start and little memory.
_SMALL: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m"
#: JVM options for long jobs. With this garbage collector, reading a journal takes some 15 % less
#: CPU time than with the default collector (measured twice, on a busy machine).
_THROUGHPUT: Final = "-XX:+UseParallelGC"
_LOGGING: Final = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = {pattern}
"""


def logging_file(directory: Path, level: str, pattern: str, more: str = "") -> str:
    """Write a configuration of Log4j, and return the option with which a JVM reads it.

    Events of this level and above are printed to stderr, in the layout `pattern`. `more` has
    further lines of the file.
    """
    file = directory / "log4j2.properties"
    file.write_text(_LOGGING.format(level=level, pattern=pattern) + more)
    return f"-Dlog4j2.configurationFile={file.as_uri()}"


def check_versions() -> None:
    """Raise PipelineError if the version of a required package is not supported."""
    for package, least, below in _NEEDED:
        installed = version(package)
        numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
        if not least <= numbers < below:
            wanted = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
            raise PipelineError(
                f"{package} has version {installed}, but must have {wanted}: pip install "
                f"'{package}{wanted}'"
            )


def ship(target: Path) -> Path:
    """Write a zip file of the code that workers import; return its path.

    (Workers cannot import from a wheel among --py-files, and report no error.)
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED:
            for path in sorted((_ROOT / package).rglob("*.py")):
                archive.write(path, path.relative_to(_ROOT).as_posix())
    return target


def start(
    master: str = "local[*]",
    name: str = "trellis pipeline",
    small: bool = False,
    settings: dict[str, str] | None = None,
    scratch: Path | None = None,
) -> SparkSession:
    """Create and return a SparkSession on `master`: `local[N]`, `spark://HOST:PORT`,
    `sc://HOST:PORT` (Spark Connect) or another URL that Spark knows.

    If `small` is True, Spark starts faster and with less memory, for tests and short jobs.
    `scratch` is the directory for Spark's temporary data. A server of Spark Connect has its own
    memory and directory. Raises PipelineError.
    """
    check_versions()
    directory = scratch or Path(tempfile.mkdtemp(prefix="trellis-pipeline-"))
    directory.mkdir(parents=True, exist_ok=True)
    if master.startswith(spark_connect.SCHEME):
        wanted = _SETTINGS | (settings or {})
        spark = spark_connect.connected(master, name, wanted, ship(directory / _ZIP))
    else:
        directories = {
            "spark.local.dir": str(directory),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        chosen = ({} if scratch is None else directories) | (settings or {})
        spark = _classic(master, name, small, chosen, directory)
        if not master.startswith("local"):
            spark.sparkContext.addPyFile(str(ship(directory / _ZIP)))
    spark.dataSource.register(DefaultSource)
    return spark


def _classic(
    master: str, name: str, small: bool, settings: dict[str, str], directory: Path
) -> SparkSession:
    """Return a session whose driver is this process and its JVM. Raises PipelineError."""
    os.environ["JAVA_HOME"] = str(java.find())
    local = master.startswith("local")
    builder: Any = SparkSession.builder.master(master).appName(name)
    wanted = _SETTINGS | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2"
        if small
        else str(max(2, min(64, 2 * (os.cpu_count() or 1)))),
    }
    # Only fatal events are logged. Spark raises its errors as exceptions, which commands report, so
    # its log would repeat these errors.
    quiet = logging_file(directory, "fatal", "spark: %m%n")
    wanted["spark.driver.extraJavaOptions"] = f"{quiet} {_SMALL if small else _THROUGHPUT}"
    if local:
        # Workers use this Python, and the machine's host name is not looked up.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        wanted |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if small:
        wanted |= {"spark.driver.memory": "768m", "spark.executor.extraJavaOptions": _SMALL}
    for key, value in (wanted | settings).items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise PipelineError(
            f"Spark did not start on {master} with Java of {os.environ['JAVA_HOME']}: {reason}"
        ) from error
    return spark
