"""Tests of the tables in docs/performance.md that benchmarks other than `peers` write."""

from __future__ import annotations

import memory
import perf_profile
import pytest

REPORT = """
 50.00%;[kernel.kallsyms];[k] tcp_sendmsg
 20.00%;trellis__mypyc.cpython-311.so;[.] CPyDef_amqp___connection___AmqpConnection____parse
 10.00%;libc.so.6;[.] __memmove_avx512_unaligned_erms
  5.00%;libpython3.11.so.1.0;[.] _Py_dict_lookup
  5.00%;libpython3.11.so.1.0;[.] _PyObject_Malloc
  5.00%;loop.cpython-311-x86_64-linux-gnu.so;[.] uv__io_poll
  5.00%;libpython3.11.so.1.0;[.] _PyEval_EvalFrameDefault
"""


@pytest.mark.parametrize(
    ("library", "symbol", "place"),
    [
        ("[kernel.kallsyms]", "tcp_sendmsg", "kernel"),
        ("[vdso]", "clock_gettime", "kernel"),
        ("loop.cpython-311-x86_64-linux-gnu.so", "uv_write", "uvloop and libuv"),
        (
            "trellis__mypyc.cpython-311-x86_64-linux-gnu.so",
            "CPyBytesWriter_Write",
            "copying bytes",
        ),
        (
            "trellis__mypyc.cpython-311-x86_64-linux-gnu.so",
            "message___Message_dealloc",
            "objects made and freed",
        ),
        ("libpython3.11.so.1.0", "siphash13", "dicts and hashes"),
        ("libc.so.6", "malloc", "objects made and freed"),
        ("ld-linux-x86-64.so.2", "_dl_fixup", "the rest of Python"),
    ],
)
def test_a_sample_has_a_place(library: str, symbol: str, place: str) -> None:
    assert perf_profile.place(library, symbol) == place


def test_a_compiled_function_has_its_name_back() -> None:
    assert (
        perf_profile.function("CPyDef_amqp___connection___AmqpConnection____parse")
        == "amqp.connection.AmqpConnection._parse"
    )


def test_shares_times_the_cost_are_nanoseconds() -> None:
    text = perf_profile.table([perf_profile.read("amqp-auto", 0.4, REPORT)], "the command", "1.0")
    assert "| kernel | 200 |" in text
    assert "| compiled code of Trellis | 80.0 |" in text
    assert "| dicts and hashes | 20.0 |" in text
    assert "| together | 400 |" in text
    assert "- amqp-auto: `amqp.connection.AmqpConnection._parse` 20.0 %" in text


def test_the_memory_table_has_bounds_and_the_drained_backlog() -> None:
    mib = 2**20
    text = memory.table(
        {
            "date": "2026-01-02",
            "command": "the command",
            "version": "1.0",
            "machine": {"processor": "one"},
            "bytes": {"mqtt-connection": 2_001.0, "queue": 710.4, "consumer": 328.0},
            "backlog": {"messages": 500, "empty": 10 * mib, "full": 110 * mib, "peak": 113 * mib},
        }
    )
    assert "| 5,000 | **2,001, missed** | 2,000 |" in text
    assert "| queue, empty | 20,000 | 710 | 2,000 |" in text
    assert "| consumer | 5,000 | 328 |  |" in text
    assert "takes 100 MiB" in text
    assert "grows by 3.0 MiB at most (allowed: 20)" in text
