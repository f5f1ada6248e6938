"""Tests of batch formats: the formats that a version reads, and the newest that all nodes read."""

from __future__ import annotations

import pytest

from broker.replication.formats import (
    FORMATS,
    REPORT_AGE_MAX,
    FormatUnread,
    common_format,
    nodes_without,
)
from broker.replication.payload import Payload
from broker.replication.records import ForeignRecord
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from tests.replication.new_format import LATER, NEXT, PRESENT

NOW = 1_700_000_000_000


@pytest.mark.parametrize("number", [1, 2])
def test_each_format_of_a_version_is_read_as_it_was_written(number: int) -> None:
    data = NEXT.of(number).encode([], [b"re", b"cords"])
    assert data[0] == number
    assert NEXT.decode(data) == Payload([], b"records")


def test_batch_of_an_unknown_format_is_refused() -> None:
    data = NEXT.of(2).encode([], [b"r"])
    with pytest.raises(ForeignRecord, match=r"format 02, and this version .* reads format 1: inst"):
        PRESENT.decode(data)
    with pytest.raises(ForeignRecord, match=r"a batch has format none"):
        PRESENT.decode(b"")


def test_log_of_another_version_is_refused_with_a_remedy() -> None:
    with pytest.raises(FormatUnread) as newer:
        PRESENT.check(2, "the data directory 'd'")
    assert str(newer.value) == (
        "the data directory 'd' has batches of format 2, and this version of Trellis reads format "
        "1: install the version that the other nodes run (`trellis cluster status` shows it)"
    )
    with pytest.raises(FormatUnread) as older:
        LATER.check(1, "the replicated log from offset 7 on")
    assert str(older.value) == (
        "the replicated log from offset 7 on has batches of format 1, because the cluster lists a "
        "node with an older version; this version of Trellis reads format 2: first install a "
        "version that reads format 1 and format 2 on all nodes, and wait until `trellis cluster "
        "status` shows format 2"
    )
    LATER.check(0, "an empty log")
    assert str(NEXT) == "formats 1 to 2"
    assert (FORMATS.oldest, FORMATS.newest) == (1, 1)


def report(newest: int, age: int = 0, forgotten: bool = False) -> NodeReport:
    return NodeReport(9, wall=NOW - age, newest=newest, forgotten=forgotten)


@pytest.mark.parametrize(
    ("others", "listed", "expected", "late"),
    [
        ({}, "owner", 2, []),
        ({"a": report(2)}, "owner a", 2, []),
        ({"a": report(1)}, "owner a", 1, ["a"]),
        ({"a": report(1)}, "owner", 1, ["a"]),
        ({"a": report(0)}, "owner a", 1, ["a"]),
        ({"a": report(2, REPORT_AGE_MAX + 1)}, "owner a", 1, ["a"]),
        ({"a": report(1, forgotten=True)}, "owner", 2, []),
        ({"a": report(3), "b": report(2)}, "owner a b", 2, []),
        ({}, "owner gone", 1, ["gone"]),
        ({}, "other", 1, ["other"]),
    ],
)
def test_format_rises_when_all_nodes_read_it(
    others: dict[str, NodeReport], listed: str, expected: int, late: list[str]
) -> None:
    reports = {"owner": report(2), **others}
    nodes = NodeList(frozenset(listed.split()))
    assert common_format(1, 2, nodes, reports, "owner", NOW) == expected
    assert nodes_without(2, nodes, reports, NOW) == late


def test_format_never_falls() -> None:
    nodes = NodeList(frozenset({"owner"}))
    assert common_format(2, 2, nodes, {"old": report(1)}, "owner", NOW) == 2
