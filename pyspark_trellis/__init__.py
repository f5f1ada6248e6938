"""Trellis's data pipeline on Spark. PySpark finds the format "trellis" here, for the module is
called pyspark_*.

    spark.read.format("trellis").load("<data directory>/streams/<vhost>/<queue>")       docs/pipeline.md
    df.where(matches("topic", "stock.*.#"))
    match_topics(df, patterns)

Reading order:

    errors       what a user can mend                      columns      of a journal
    messages     of Arrow's: heads and checksums           segments     where their batches begin, and their rows
    journal      a stream: what is there, cut into pieces
    remote       the same over HTTP                        offsets      where a query begins and ends
    source       spark.read, spark.readStream              sink         writeStream
    bulk         many topics, many patterns
    java         which Java                                session      a Spark session, here or on a cluster
    definitions  exchanges and bindings of a file          topology     the same as of a time, and who listens
    asked        which of them a question is about         routing      where topics go by them
    history      topics and counts, from a journal or from `traffic`
    lake, traffic, whatif, audit, advise                   the jobs, tables in and tables out
    report, plots                                          the page
    demo, bench                                            what it is for; what it costs
    running      in a session, once or again               lines        answers for people
    commands     `trellis pipeline ...`

What it needs of the broker's code is `matching` alone, so both run on a cluster's workers from one
zip.
"""

from pyspark_trellis.bulk import match_by_shape, match_topics, matches
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.source import DefaultSource

__all__ = ["DefaultSource", "PipelineError", "match_by_shape", "match_topics", "matches"]
