"""Tests of cutting definitions documents: the rows, and the memory that it takes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.test_api import ADMIN, api
from tests.top.test_gateway import login
from trellis.http.gateway.bodies import PART_BYTES, cut_document

#: Memory in bytes that two parts of rows of two bytes take, with 64 bytes for each row: the part
#: that was cut last, and the part that is being cut.
CUT_MEMORY: Final = 2 * 64 * (PART_BYTES // 2)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\,[]{}:é \n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='b"\\,[]{}', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(values, max_size=6), st.sampled_from([None, 1]), st.booleans())
@example([], None, False)
@example([[], [[]], "]"], 1, True)
def test_rows_are_those_of_a_json_decoder(
    rows: list[Any], indent: int | None, ascii_only: bool
) -> None:
    document = {"other": 1, "queues": rows, "unknown": {"queues": [1]}}
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    parts = list(cut_document(data, ["queues", "bindings"]))
    assert all((section, fault) == ("queues", "") for section, fault, _ in parts)
    cut = [row for _, _, part in parts for row in part]
    assert [msgspec.json.decode(row) for row in cut] == rows


@pytest.mark.parametrize("indent", [None, 1])
def test_spaces_do_not_count_for_the_size_of_a_row(indent: int | None) -> None:
    data = json.dumps({"queues": ["a", "b"]}, indent=indent).encode()
    [(_, _, [first, second])] = cut_document(data, ["queues"])
    assert (first, second.rstrip()) == (b'"a"', b'"b"')


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"queues":[' + b"{}," * 400_000 + b"{}]}", id="rows"),
        pytest.param(b'{"queues":[[' + b"{}," * 400_000 + b"{}]]}", id="values of one row"),
        pytest.param(
            b"{" + b",".join(b'"%x":1' % number for number in range(200_000)) + b"}", id="names"
        ),
    ],
)
def test_very_many_small_values_take_no_memory_of_their_own(data: bytes) -> None:
    list(cut_document(b'{"queues":[]}', ["queues"]))
    tracemalloc.start()
    try:
        count = sum(len(rows) for _, _, rows in cut_document(data, ["queues"]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == (400_001 if data[:13] == b'{"queues":[{}' else 0)
    assert peak < CUT_MEMORY


async def test_the_next_request_is_served_after_a_document_of_very_many_rows(start: Start) -> None:
    broker: Running = await start(users=[ADMIN])
    data = b'{"queues":[' + b"1," * 30_000 + b'{"name":"last","vhost":"/"}]}'
    head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{login()}Content-Length: {len(data)}\r\n"
    status, _, body = await broker.ask("http", f"{head}\r\n".encode() + data)
    assert (status, json.loads(body)["taken"]) == (200, {"queues": 1})
    assert (await api(broker, "GET", "queues/%2F/last"))[0] == 200
