"""The Java process that uses Hadoop's API for this process.

The Java process starts at the first use and ends with this process. Its class path has the classes
of Spark, the classes in SPARK_DIST_CLASSPATH (Spark's variable for the classes of Hadoop), and the
jar files of `spark.jars` and `spark.files` on this machine. Its configuration of Hadoop has the
files of HADOOP_CONF_DIR, and the settings of the option `hadoopSecrets`.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pyspark_trellis import java
from pyspark_trellis.errors import PipelineError

#: The options of the Java process: little memory, and a fast start.
_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Held while the connection to the Java process, or a file system's Java object, is looked up or
#: made. Otherwise, threads that need it at the same time would start a Java process each, and pass
#: the Java objects of one process to another process.
_LOCK: Final = Lock()


def class_path() -> tuple[str, ...]:
    """Return the class path of the Java process, the file of py4j first. Raises PipelineError."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    jars = Path(home, "jars")
    py4j = sorted(jars.glob("py4j-*.jar"))
    if not py4j:
        raise PipelineError(
            f"Spark's Java classes are not in {jars}: set SPARK_HOME on every machine, or use a "
            "checkpointLocation in a directory that is mounted on all machines"
        )
    settings, more = (os.environ.get(name) for name in ("HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"))
    entries = (str(py4j[0]), settings, str(jars / "*"), *_added_jars(), more)
    return tuple(entry for entry in entries if entry)


def java_classes(classes: tuple[str, ...]) -> Any:
    """Return py4j's view of the classes in the Java process with a class path.

    Raises PipelineError if there is no Java.
    """
    with _LOCK:
        return _gateway(classes).jvm


def file_system(classes: tuple[str, ...], root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """Return a new Java object: Hadoop's FileSystem for the URL `root`, with Hadoop's `settings`.

    `classes` is the class path (`class_path`). Hadoop's own cache of these objects is not used: it
    ignores the settings, while a process of Spark may serve several queries with different
    credentials for one bucket. Raises PipelineError if there is no Java. If a Java call fails,
    py4j's error is raised.
    """
    with _LOCK:
        return _file_system(classes, root, settings)


def _added_jars() -> list[str]:
    """Return the jar files that Spark has copied to this machine (`spark.jars`, `spark.files`)."""
    from pyspark import SparkFiles

    try:
        root = Path(SparkFiles.getRootDirectory())
    except (AssertionError, AttributeError, TypeError):
        return []  # This code does not run in a task.
    # A session of Spark Connect has a directory of its own, which is named by the session's UUID
    # and is in the directory with the files of the server.
    roots = [root.parent, root] if _UUID.fullmatch(root.name) else [root]
    jars = {jar.name: str(jar) for each in roots for jar in each.glob("*.jar")}
    return sorted(jars.values())


@cache
def _gateway(classes: tuple[str, ...]) -> Any:
    """Return the connection to the Java process with a class path; start it if necessary.

    The caller must hold _LOCK.
    """
    java_gateway: Any = import_module("py4j.java_gateway")
    options = list(_JAVA_OPTIONS)
    # An executor of Spark may belong to another user than the query. Without Kerberos, Spark then
    # uses HDFS as the user SPARK_USER, and HADOOP_USER_NAME has precedence over this property.
    if user := os.environ.get("SPARK_USER"):
        options.append(f"-DHADOOP_USER_NAME={user}")
    port, token = java_gateway.launch_gateway(
        jarpath=classes[0],
        classpath=os.pathsep.join(classes[1:]),
        javaopts=options,
        die_on_exit=True,
        java_path=str(java.find() / "bin" / "java"),
        enable_auth=True,
    )
    return java_gateway.JavaGateway(
        gateway_parameters=java_gateway.GatewayParameters(
            port=port, auth_token=token, auto_convert=True
        )
    )


@cache
def _file_system(classes: tuple[str, ...], root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """Return the result of `file_system`. The caller must hold _LOCK."""
    jvm = _gateway(classes).jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in settings:
        configuration.set(name, value)
    return jvm.org.apache.hadoop.fs.FileSystem.newInstance(jvm.java.net.URI(root), configuration)
