"""Trellis's data pipeline: reads journals as tables and answers questions about routing, with and
without Spark.

    spark.read.format("trellis").load("<data directory>/streams/<vhost>/<queue>")
    df.where(matches("topic", "stock.*.#"))
    match_topics(df, patterns)

A journal is a stream queue with all published messages. PySpark finds the format "trellis" here,
because it searches modules called pyspark_*. docs/pipeline.md is the guide for users.

Reading order:

    errors        PipelineError: errors that a user can fix
    grammars      grammars by name, checked patterns
    columns       the columns of a journal
    messages      headers and checksums of Arrow IPC messages
    segments      where a segment's batches begin, and their rows
    segment_topics
                  summaries of the topics of segments, by which segments are skipped
    journal       a stream in a directory, divided into pieces for tasks
    remote        a stream that a running broker serves over HTTP
    journals      the journals that a query reads: one, several, or all of a pattern
    options       the options of the source, and their aliases
    offsets       where a query begins and ends
    trigger       where a micro-batch ends, and its tasks
    query_lag     how far a query is behind
    topic_filter  the rows whose topics match a pattern
    rows          the rows of a journal that a query selects
    periods       periods of time in which the same bindings exist
    exporting     the rows that `trellis stream export` writes
    counts        sums by topic, from the rows of a journal
    definitions   exchanges and bindings of a definitions file
    topology      bindings and MQTT subscriptions as of a time
    read_scope    which matching messages a session does not receive
    topology_history, bindings_by_time
                  how long each binding existed
    job_bindings  the bindings that a job examines, chosen by the command's arguments
    routing       the queues that topics go to
    topics        the aggregates from which the jobs compute their answers
    nearest       the binding key that is most similar to a topic
    whatif, audit, advise
                  the jobs
    lines         answers as text

Without Spark:

    arrow_topics  the aggregates, in this process
    arrow_feed    the sums, from a journal or from `traffic`
    traffic_table the answers to `ask traffic` and `ask unroutable`
    answering     runs a job once or again, and writes its answer as JSON (also on Spark)
    asking        `trellis ask ...`
    kept_reports  `trellis report`
    asyncapi      a package: `trellis asyncapi`

On Spark; only these modules import PySpark:

    pushdown      the conditions of a query that the source applies
    source        spark.read, spark.readStream
    storage       files beside a checkpoint, on the file systems of Hadoop
    hadoop_java   the Java process that uses the file systems of Hadoop
    staging       the rows of a batch, before they are published
    publisher     messages with confirms, to a broker that may push back
    sink          write, writeStream
    bulk          many topics against many patterns
    spark_connect clients of Spark Connect
    java, session the Java to use; a Spark session: local, on a cluster, or of a server
    session_files files beside a query's output
    history       topics and counts, from a journal or from `traffic`
    spark_topics  the aggregates, on Spark
    lake          copies of a journal, counts by minute
    report, plots the HTML page
    demo          a guided example
    bench, bench_tasks
                  measure CPU times
    running       runs a job once, or again for new messages
    commands      `trellis pipeline ...`

The package imports only `matching` of the broker's code, so that one zip file with both packages
is enough for the workers of a cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark_trellis.errors import PipelineError

if TYPE_CHECKING:
    from pyspark_trellis.bulk import match_by_shape, match_topics, matches
    from pyspark_trellis.query_lag import JournalLag, lag
    from pyspark_trellis.rows import read_table
    from pyspark_trellis.source import DefaultSource

__all__ = [
    "DefaultSource",
    "JournalLag",
    "PipelineError",
    "lag",
    "match_by_shape",
    "match_topics",
    "matches",
    "read_table",
]

#: The modules of the public names that need further packages.
_LATER = {
    "DefaultSource": "source",
    "JournalLag": "query_lag",
    "lag": "query_lag",
    "match_by_shape": "bulk",
    "match_topics": "bulk",
    "matches": "bulk",
    "read_table": "rows",
}


def __getattr__(name: str) -> object:
    """Return the object with a name in _LATER; import the object's module at the first use.

    These modules need further packages, such as PySpark. `trellis ask` imports this package
    without them.
    """
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{module}"), name)
