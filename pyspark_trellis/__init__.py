"""Trellis's data pipeline on Spark: reads journals as tables and answers questions about routing.

    spark.read.format("trellis").load("<data directory>/streams/<vhost>/<queue>")
    df.where(matches("topic", "stock.*.#"))
    match_topics(df, patterns)

A journal is a stream queue with all published messages. PySpark finds the format "trellis" here,
because it searches modules called pyspark_*. docs/pipeline.md is the guide for users.

Reading order:

    errors        PipelineError: errors that a user can fix
    columns       the columns of a journal
    messages      headers and checksums of Arrow IPC messages
    segments      where a segment's batches begin, and their rows
    journal       a stream in a directory, divided into pieces for tasks
    remote        a stream that a running broker serves over HTTP
    offsets       where a query begins and ends
    source        spark.read, spark.readStream
    sink          writeStream
    bulk          many topics against many patterns
    java, session the Java to use; a Spark session, local or on a cluster
    definitions   exchanges and bindings of a definitions file
    topology      bindings and MQTT subscriptions as of a time
    job_bindings  the bindings that a job examines, chosen by the command's arguments
    routing       the queues that topics go to
    history       topics and counts, from a journal or from `traffic`
    lake, whatif, audit, advise
                  the jobs
    report, plots the HTML page
    demo          a guided example
    bench         measures CPU times
    running       runs a job once, or again for new messages
    lines         answers as text
    commands      `trellis pipeline ...`

The package imports only `matching` of the broker's code, so that one zip file with both packages
is enough for the workers of a cluster.
"""

from pyspark_trellis.bulk import match_by_shape, match_topics, matches
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.source import DefaultSource

__all__ = ["DefaultSource", "PipelineError", "match_by_shape", "match_topics", "matches"]
