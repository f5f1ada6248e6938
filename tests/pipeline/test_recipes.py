"""Runs the recipes of docs/pipeline.md for DuckDB, Polars and pandas: they give equal answers."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from matching.grammar import MQTT, swap
from pyspark_trellis import PipelineError, read_table
from tests.pipeline.traffic import definitions, rows
from tests.pipeline.written import Row, journal, row
from trellis.cli import main

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
_RECIPE: Final = re.compile(r"<!-- recipe: ([\w ]+) -->\n\n```python\n(.*?)```", re.DOTALL)
_DIRECTORY: Final = "/var/lib/trellis/streams/%2F/journal"


def written(path: Path) -> list[Row]:
    rng = random.Random(3)
    return journal(path, rows(rng, 200, definitions(rng, 25)), 50, 100)


def counted(rows: list[Row]) -> list[tuple[str, int, int]]:
    """Return (topic, messages, bytes) of the ten topics with the most messages."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in rows:
        sums[each["topic"]][0] += 1
        sums[each["topic"]][1] += each["size"]
    totals = [(topic, messages, size) for topic, (messages, size) in sums.items()]
    return sorted(totals, key=lambda row: (-row[1], row[0]))[:10]


@pytest.mark.long
@pytest.mark.parametrize("tool", ["duckdb", "polars", "pandas"])
def test_a_recipe_counts_the_messages_of_each_topic(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool)
    expected = counted(written(tmp_path / "journal"))
    recipes = dict(_RECIPE.findall(PAGE.read_text()))
    assert _DIRECTORY in recipes["table"]
    names: dict[str, Any] = {}
    exec(recipes["table"].replace(_DIRECTORY, str(tmp_path / "journal")), names)
    exec(recipes[tool], names)
    assert names["answer"] == expected


@pytest.mark.long
@pytest.mark.parametrize("tool", ["duckdb", "polars", "pandas"])
def test_a_recipe_reads_an_exported_file(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool)
    expected = counted(written(tmp_path / "streams" / "%2F" / "journal"))
    file = tmp_path / "journal.parquet"
    assert main(["stream", "export", "journal", str(file), "--directory", str(tmp_path)]) == 0
    recipe = dict(_RECIPE.findall(PAGE.read_text()))[f"{tool} file"]
    assert "journal.parquet" in recipe
    names: dict[str, Any] = {}
    exec(recipe.replace("journal.parquet", str(file)), names)
    assert names["answer"] == expected


@pytest.mark.long
def test_polars_and_duckdb_read_each_column_of_each_format(tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    strange = {"timestamp": None, "message_id": "m", "headers": '{"a":1}'}
    messages = [row(n, f"t.{n % 3}", body=b"%d" % n, **strange) for n in range(100)]
    journal(tmp_path / "streams" / "%2F" / "journal", messages)
    for suffix, read in (
        ("parquet", polars.read_parquet),
        ("arrow", polars.read_ipc),
        ("arrows", polars.read_ipc_stream),
    ):
        file = tmp_path / f"journal.{suffix}"
        assert main(["stream", "export", "journal", str(file), "--directory", str(tmp_path)]) == 0
        table = read(file)
        assert table.columns == list(messages[0])
        assert table.select("offset", "topic", "published_at", "body", "headers").rows() == [
            tuple(each[name] for name in ("offset", "topic", "published_at", "body", "headers"))
            for each in messages
        ]
    file = tmp_path / "journal.parquet"
    [count] = duckdb.sql(f"SELECT count(*) FROM '{file}' WHERE body = '7'::BLOB").fetchall()
    assert count == (1,)
    assert len(duckdb.sql(f"SELECT * FROM '{file}'").fetchall()) == 100


def test_a_journal_is_a_table(tmp_path: Path) -> None:
    messages = written(tmp_path)
    whole = read_table(str(tmp_path))
    assert whole.column("body").to_pylist() == [each["body"] for each in messages]
    some = read_table(str(tmp_path), ["offset"], startingOffsets="30", endingOffsets="60")
    assert some.to_pydict() == {"offset": list(range(30, 60))}
    assert read_table(str(tmp_path), ["topic"], startingOffsets="latest").num_rows == 0
    for pattern, grammar, topic_filter in (("a.*", "amqp", "a/+"), ("a/#", "mqtt", "a/#")):
        matching = read_table(str(tmp_path), ["offset"], pattern=pattern, grammar=grammar)
        assert 0 < matching.num_rows < len(messages)
        assert matching.column("offset").to_pylist() == [
            each["offset"] for each in messages if MQTT.matches(topic_filter, swap(each["topic"]))
        ]
    for columns, options, text in (
        (["topics"], {}, "a journal has no column 'topics'; the nearest is 'topic'"),
        (["topic"], {"startingOffsets": "no"}, "but must be earliest, latest or an offset"),
    ):
        with pytest.raises(PipelineError, match=text):
            read_table(str(tmp_path), columns, **options)
