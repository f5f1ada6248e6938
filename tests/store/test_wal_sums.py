"""Tests that tests/wal_sums.py computes the checksums that the product computes."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.disk import RealDisk
from broker.store.wal import WalCheck, WalChecksum
from tests import wal_sums

CHUNKS = st.lists(st.binary(min_size=1, max_size=40).map(lambda data: data * 8), max_size=5)


@given(st.booleans(), CHUNKS)
def test_the_sums_are_those_of_the_product(little: bool, chunks: list[bytes]) -> None:
    ours, product = WalChecksum(little), WalChecksum(little)
    for chunk in chunks:
        wal_sums.add(ours, chunk)
        wal_sums.product_add(product, chunk)
        assert (ours.first_sum, ours.second_sum) == (product.first_sum, product.second_sum)


@pytest.mark.parametrize("page", [512, 4096, 65536])
@pytest.mark.parametrize("add", [wal_sums.add, wal_sums.product_add])
def test_both_accept_a_log_of_sqlite_and_find_a_changed_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int, add: object
) -> None:
    monkeypatch.setattr(WalChecksum, "add", add)
    database = sqlite3.connect(tmp_path / "a", isolation_level=None)
    database.executescript(f"PRAGMA page_size = {page}; PRAGMA journal_mode = wal")
    database.execute("CREATE TABLE t (a)")
    for _ in range(3):
        database.execute("INSERT INTO t VALUES (?)", (os.urandom(2_000),))
    path = tmp_path / "a-wal"
    check = WalCheck(RealDisk(), str(path))
    assert (check.damage, check.torn_size) == ("", 0)
    data = bytearray(path.read_bytes())
    data[32 + 24 + 100] ^= 1
    copy = tmp_path / "copy"
    copy.write_bytes(data)
    assert WalCheck(RealDisk(), str(copy)).damage == "the frame at offset 32 is invalid"
    database.close()
