"""Tests of a start after a crash: the log has the last batch, and the catalog does not have it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.store.catalog import Catalog
from broker.store.disk import RealDisk
from broker.store.entries import RetainedSet
from broker.store.findings import CUT, MISSING
from broker.store.inspect import verify
from broker.store.opening import CATALOG, LOG
from tests.store.homes import Home
from tests.store.logs import message


def written(directory: Path, batches: int) -> None:
    """Write a queue and its messages in `batches` batches.

    Then restore the catalog from before these batches, so that only the log has them.
    """
    home = Home(directory)
    home.amqp().queue("early", "amq.direct", "a", durable=True)
    home.broker.store.sync()
    home.crash()
    shutil.copy(directory / CATALOG, directory / "kept")
    home = Home(directory)
    client = home.amqp()
    client.queue("late", "amq.direct", "b", durable=True)
    for number in range(batches):
        client.publish("amq.direct", "b", b"%d" % number, delivery_mode=2)
        home.settle()
        home.broker.store.sync()
    home.crash()
    for path in directory.glob(f"{CATALOG}*"):
        path.unlink()
    shutil.move(directory / "kept", directory / CATALOG)


@pytest.mark.parametrize(
    ("batches", "what", "words"),
    [
        (1, [CUT], "(number of copies: 1): these queues"),
        (2, [MISSING], "(number of copies: 2)"),
    ],
)
def test_only_a_later_batch_shows_that_the_catalog_was_written(
    tmp_path: Path, batches: int, what: list[str], words: str
) -> None:
    written(tmp_path, batches)
    home = Home(tmp_path)
    findings = home.opened.recovery.findings
    assert [finding.kind for finding in findings] == what
    assert words in findings[0].reason and findings[0].file == CATALOG
    assert set(home.vhost.queues) == {"early"} and home.report.copies == 0
    home.crash()


@pytest.mark.parametrize("batches", [1, 2])
def test_end_of_the_log_is_reported_once(tmp_path: Path, batches: int) -> None:
    written(tmp_path, batches)
    Home(tmp_path).crash()
    home = Home(tmp_path)
    assert home.opened.recovery.findings == []
    home.amqp().queue("late", "amq.direct", "b", durable=True)
    home.broker.store.sync()
    home.crash()
    home = Home(tmp_path)
    assert home.report.copies == 0 and home.vhost.queues["late"].depth == 0
    home.crash()


def test_a_newest_segment_that_is_removed_whole_is_noticed(tmp_path: Path) -> None:
    for number in range(3):
        home = Home(tmp_path)
        # No definition is written, so only the new segment is a reason to write to the catalog.
        home.opened.store.append(RetainedSet("/", f"k{number}", message(b"kept"), 0), None)
        home.opened.store.sync()
        home.crash()
    *_, newest = sorted((tmp_path / LOG).glob("*.log"))
    newest.unlink()
    catalog = Catalog(str(tmp_path / CATALOG))
    written = catalog.log_position
    catalog.close()
    findings = list(verify(RealDisk(), str(tmp_path / LOG), log_position=written))
    [missing] = [finding for finding in findings if finding.kind != "fine"]
    assert (
        missing.kind == "missing" and f"has written it up to position {written}" in missing.reason
    )
    again = Home(tmp_path)
    assert [finding.kind for finding in again.opened.recovery.findings] == ["missing"]
    again.crash()
