"""Tests of the report: one self-contained page with the findings of the jobs."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_trellis import history as hist
from pyspark_trellis.definitions import parse
from pyspark_trellis.report import make
from tests.pipeline.traffic import definitions, rows
from tests.pipeline.written import journal


class Outline(HTMLParser):
    """Collects the resources that a page requests, its titles and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "svg":
            self.labels.append(attributes.get("aria-label") or "")
        self.urls += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#")
        ]
        assert tag not in ("script", "link", "iframe")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = random.Random(5)
    old = definitions(rng, 20)
    new = definitions(rng, 10)
    for each in old["bindings"]:
        each["routing_key"] = each["routing_key"].replace("b", "<b>")
    path = tmp_path_factory.mktemp("report") / "journal"
    journal(path, rows(rng, 300, old), 100, 200)
    parts = hist.rollup(spark.read.format("trellis").schema(hist.PROJECTION).load(str(path)))
    return make(parts, parse(old, "old.json"), parse(new, "plans/new.json"))


def test_the_page_is_complete_and_loads_no_resources(page: str) -> None:
    outline = Outline(page)
    assert outline.urls == []
    assert outline.labels == [
        "Messages by exchange",
        "Copies to queues and sessions",
        "Unroutable messages",
        "Topics with the most messages",
        "Share of the messages in the most frequent topics",
        "Queues with more or fewer messages",
        "Time of an uncached lookup, by matcher",
    ]
    text = "".join(outline.texts)
    for title in (
        "What was published, and where it went",
        "Unroutable topics",
        "Dead: bindings that no published topic matched",
        "Redundant: bindings whose topics another binding takes",
        "Topics that would reach no queue any more",
        "Topic exchanges",
        "300",
    ):
        assert title in text
    assert "What if: new.json" in text
    assert '<meta name="viewport"' in page


def test_names_are_shown_as_they_are(page: str) -> None:
    assert "<b>." not in re.sub(r"<b>[\d.,%]+</b>", "", page)
    assert "&lt;b&gt;" in page


def test_a_report_without_messages_says_so(spark: SparkSession, tmp_path: Path) -> None:
    from tests.pipeline.written import Writer, row

    Writer(tmp_path).write([row(0, "a")])
    parts = hist.rollup(
        spark.read.format("trellis")
        .schema(hist.PROJECTION)
        .option("startingOffsets", "latest")
        .load(str(tmp_path))
    )
    assert "Nothing was published." in make(parts, parse({}, "empty"))
