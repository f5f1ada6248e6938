"""Tests of the atomic cell, and of the error when the package cereggii is missing."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from matching.cells import AtomicCell, Cell


def test_cell_holds_its_first_value_until_the_value_is_exchanged() -> None:
    first, second = [1], [1]
    cell: Cell[list[int]] = AtomicCell(first)
    assert cell.get() is first
    # compare_and_set compares by identity: an equal object is not enough
    assert not cell.compare_and_set(second, [2])
    assert cell.get() is first
    assert cell.compare_and_set(first, second)
    assert cell.get() is second


def test_a_cell_may_hold_none() -> None:
    cell: Cell[str | None] = AtomicCell(None)
    assert cell.compare_and_set(None, "x")
    assert not cell.compare_and_set(None, "y")
    assert cell.compare_and_set("x", None)
    assert cell.get() is None


def test_the_contract_alone_holds_nothing() -> None:
    cell: Cell[int] = Cell(1)
    with pytest.raises(NotImplementedError):
        cell.get()
    with pytest.raises(NotImplementedError):
        cell.compare_and_set(1, 2)


def test_of_the_threads_that_exchange_the_same_value_one_succeeds() -> None:
    together = threading.Barrier(4)
    count: Cell[list[int]] = AtomicCell([0])

    def increment() -> None:
        together.wait()
        for _ in range(500):
            while True:
                value = count.get()
                if count.compare_and_set(value, [value[0] + 1]):
                    break

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.get() == [2_000]


@pytest.mark.parametrize("name", ["cstrie", "snapshot"])
def test_error_without_cereggii_names_the_package_to_install(name: str) -> None:
    program = (
        "import sys; sys.modules['cereggii'] = None; "
        f"from matching import AMQP, create; create({name!r}, AMQP)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: the concurrent matchers need the package cereggii: "
        "pip install 'trellis-broker[concurrent]'"
    )
