"""Runs the recipes of docs/pipeline.md for DuckDB, Polars and pandas: they give equal answers."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from pyspark_trellis import PipelineError, read_table
from tests.pipeline.traffic import definitions, rows
from tests.pipeline.written import Row, journal

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
_RECIPE: Final = re.compile(r"<!-- recipe: (\w+) -->\n\n```python\n(.*?)```", re.DOTALL)
_DIRECTORY: Final = "/var/lib/trellis/streams/%2F/journal"


def written(path: Path) -> list[Row]:
    rng = random.Random(3)
    return journal(path, rows(rng, 200, definitions(rng, 25)), 50, 100)


@pytest.mark.long
@pytest.mark.parametrize("tool", ["duckdb", "polars", "pandas"])
def test_a_recipe_counts_the_messages_of_each_topic(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in written(tmp_path / "journal"):
        sums[each["topic"]][0] += 1
        sums[each["topic"]][1] += each["size"]
    counted = [(topic, messages, size) for topic, (messages, size) in sums.items()]
    expected = sorted(counted, key=lambda row: (-row[1], row[0]))
    recipes = dict(_RECIPE.findall(PAGE.read_text()))
    assert _DIRECTORY in recipes["table"]
    names: dict[str, Any] = {}
    exec(recipes["table"].replace(_DIRECTORY, str(tmp_path / "journal")), names)
    exec(recipes[tool], names)
    assert names["answer"] == expected[:10]


def test_a_journal_is_a_table(tmp_path: Path) -> None:
    messages = written(tmp_path)
    whole = read_table(str(tmp_path))
    assert whole.column("body").to_pylist() == [each["body"] for each in messages]
    some = read_table(str(tmp_path), ["offset"], startingOffsets="30", endingOffsets="60")
    assert some.to_pydict() == {"offset": list(range(30, 60))}
    assert read_table(str(tmp_path), ["topic"], startingOffsets="latest").num_rows == 0
    for columns, options, text in (
        (["topics"], {}, "a journal has no column 'topics'; the nearest is 'topic'"),
        (["topic"], {"startingOffsets": "no"}, "and should be earliest, latest or an offset"),
    ):
        with pytest.raises(PipelineError, match=text):
            read_table(str(tmp_path), columns, **options)
