"""The options of `format("trellis")`: their names, aliases and meanings, for reading and writing.

    READING, WRITING              tables of options; docs/pipeline.md shows them
    known(options, READING)       the options by their usual names in lowercase, checked

An unknown option is an error that names the most similar option, because a misspelt option that
Spark ignored would be noticed late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pyspark_trellis.errors import PipelineError


@dataclass(frozen=True)
class SparkOption:
    """An option of the source or the sink.

    `meaning` and `default` are texts for users, in Markdown. `aliases` are other names of the
    option, which other sources of Spark or earlier versions use.
    """

    name: str
    meaning: str
    default: str = ""
    aliases: tuple[str, ...] = ()


#: The options of the login and of TLS, for the source over HTTP and for the sink over AMQP.
LOGIN: Final = (
    SparkOption(
        "user", "the user (in place of the user in the URL)", "`TRELLIS_USER`; else `guest`"
    ),
    SparkOption(
        "password", "the password. Spark redacts this option in its logs", "`TRELLIS_PASSWORD`"
    ),
    SparkOption(
        "passwordFile",
        "a file whose first line is the password",
        "`TRELLIS_PASSWORD_FILE`; for the user guest, the password is guest",
    ),
    SparkOption(
        "token",
        "a JSON Web Token in place of user and password. Spark redacts this option in its logs",
    ),
    SparkOption("tokenFile", "a file whose first line is a JSON Web Token"),
    SparkOption(
        "caFile",
        "for `https` and `amqps`: a PEM file with the certificates of authorities to trust",
        "the authorities of the system",
    ),
)

READING: Final = (
    SparkOption("path", "the argument of `load`: a directory, or `http://HOST:15672`"),
    SparkOption(
        "journal",
        "the journals or other streams to read, separated by commas: `QUEUE` (in the vhost `/`) or "
        "`VHOST/QUEUE`; with `%2F`, `%2C` and `%25` for `/`, `,` and `%` inside a name. "
        "With this option, a directory in `path` is the directory `streams` of the broker",
        "the directory in `path`; over HTTP, a name is required",
        ("stream", "subscribe"),
    ),
    SparkOption(
        "journalPattern",
        "in place of `journal`: a regular expression. All streams whose whole name matches it are "
        "read, also streams that are declared later; `$topology` never matches",
        "",
        ("subscribePattern",),
    ),
    SparkOption(
        "startingOffsets",
        "`earliest`, `latest`, an offset, or JSON with one of these values for each journal: "
        '`{"orders": 23, "eu/orders": "latest"}` (`-2` and `-1` mean `earliest` and `latest`). '
        "A streaming query uses this option only without a checkpoint",
        "`earliest`",
    ),
    SparkOption(
        "startingTimestamp",
        "in place of `startingOffsets`: begin with the first message that the broker received at "
        "this time or later; ISO 8601 (UTC if there is no zone), milliseconds since 1970, or JSON "
        "with one of these times for each journal",
        "",
        ("startingOffsetsByTimestamp",),
    ),
    SparkOption(
        "endingOffsets",
        "`latest`, the first offset that is not read, or JSON with one of these values for each "
        "journal (`spark.read` only)",
        "`latest`",
    ),
    SparkOption(
        "endingTimestamp",
        "in place of `endingOffsets`: end before the first message that the broker received at "
        "this time or later (`spark.read` only)",
        "",
        ("endingOffsetsByTimestamp",),
    ),
    SparkOption(
        "failOnDataLoss",
        "`true`: if the journal lacks rows that the query should read, the query ends with an "
        "error. `false`: the query continues with the next existing row, and Spark's log of the "
        "query has a warning",
        "`true`",
    ),
    SparkOption(
        "pattern", "read only topics that match this binding key or topic filter", "all topics"
    ),
    SparkOption(
        "grammar",
        "the grammar of `pattern`: `amqp`, or `mqtt` for a topic filter with `/`",
        "`amqp`",
    ),
    SparkOption(
        "maxRowsPerTrigger",
        "largest number of rows in a micro-batch, of all journals together",
        "all rows that exist",
        ("maxOffsetsPerTrigger",),
    ),
    SparkOption(
        "maxBytesPerTrigger",
        "approximate largest size of a micro-batch, in bytes of segments (a micro-batch has at "
        "least one batch of each journal with new rows)",
        "all rows that exist",
    ),
    SparkOption(
        "rowsPerTask",
        "largest number of rows that one task reads, from one or several segments and journals",
        "1,000,000",
        ("maxRecordsPerPartition",),
    ),
    SparkOption(
        "minPartitions",
        "smallest number of tasks (never more tasks than rows). Set this option to get more tasks "
        "than `rowsPerTask` makes",
        "1",
    ),
    SparkOption(
        "verify",
        "check the checksum of each batch (damage is an error that names file and offset). "
        "`false` is faster if you select few columns of messages with large bodies: the source "
        "then does not read the bodies",
        "`true`",
    ),
    SparkOption(
        "pushdown",
        "`false`: do not apply conditions while reading, even if the session permits it "
        "([below](#conditions-while-reading))",
        "`true`",
    ),
    *LOGIN,
)


WRITING: Final = (
    SparkOption(
        "url",
        "the broker: `amqp://HOST:PORT/VHOST`, or `amqps://...` for TLS",
        "`amqp://127.0.0.1:5672/`",
    ),
    SparkOption("exchange", "the exchange of rows without a column `exchange`", "`amq.topic`"),
    SparkOption(
        "checkpointLocation",
        "a directory that all workers can read and write, on any file system of Hadoop. The sink "
        "stages the rows of a batch there; for a streaming query, it is the query's checkpoint",
        "required",
    ),
    SparkOption(
        "publishTimeout",
        "seconds without a confirm after which the query fails, for example while a queue is full",
        "60",
    ),
    SparkOption(
        "txnAppId",
        "`df.write` only: the name of the job. A job that is run again with the same `txnAppId`, "
        "`txnVersion` and `checkpointLocation` publishes no message twice",
        "each run is another job",
        ("producer",),
    ),
    SparkOption(
        "txnVersion",
        "`df.write` only: the number of the job's run; a later run has a higher number",
        "0",
    ),
    SparkOption(
        "hadoopSecrets",
        "settings of Hadoop for `checkpointLocation`, as a JSON object, if they are not in the "
        "files of `HADOOP_CONF_DIR`. Spark redacts this option in its logs",
        "`{}`",
    ),
    *LOGIN,
    SparkOption("path", "not used"),
)


def known(options: Mapping[str, str], table: Sequence[SparkOption]) -> dict[str, str]:
    """Return the options by their usual names in lowercase.

    Raises PipelineError for an unknown option, and if an option and its alias have two values.
    """
    names = {
        spelling.lower(): option.name
        for option in table
        for spelling in (option.name, *option.aliases)
    }
    values: dict[str, str] = {}
    for spelling, value in options.items():
        name = names.get(spelling.lower())
        if name is None:
            near = names[get_close_matches(spelling.lower(), names, n=1, cutoff=0)[0]]
            others = ", ".join(option.name for option in table if option.name != "path")
            raise PipelineError(
                f"format(\"trellis\") has no option '{spelling}'; the nearest is '{near}' "
                f"(the options are {others})"
            )
        if values.setdefault(name.lower(), value) != value:
            raise PipelineError(
                f"option {name} has two values, '{values[name.lower()]}' and '{value}': "
                f"set it under one name only ({name}, {', '.join(_aliases(name, table))})"
            )
    return values


def _aliases(name: str, table: Sequence[SparkOption]) -> tuple[str, ...]:
    return next(option.aliases for option in table if option.name == name)


def markdown(table: Sequence[SparkOption]) -> str:
    """Return the options as a table in Markdown."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for option in table:
        other = "".join(f", `{alias}`" for alias in option.aliases)
        lines.append(f"| `{option.name}`{other} | {option.meaning} | {option.default} |")
    return "\n".join(lines) + "\n"
