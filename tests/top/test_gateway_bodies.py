"""Tests of how the gateway cuts an uploaded definitions document into its rows.

They check the rows, and how much memory the gateway needs.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.gateway_client import login, response
from tests.top.running import Running
from trellis.http import contract
from trellis.http.gateway.app import UPLOADS_MAX
from trellis.http.gateway.bodies import PART_BYTES, cut_document

#: Maximum memory for cutting, in bytes. Two parts of the document are in memory: the last cut part
#: and the part being cut. In the worst case, a part has a row for every two bytes, and each row
#: takes 64 bytes.
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
def test_cut_rows_equal_those_of_a_json_decoder(
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
        pytest.param(
            b'{"queues":[' + b"{}," * 400_000 + b"{}]}", id="rows", marks=pytest.mark.long
        ),
        pytest.param(
            b'{"queues":[[' + b"{}," * 400_000 + b"{}]]}",
            id="values of one row",
            marks=pytest.mark.long,
        ),
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


def send_all_and_read(port: int, data: bytes) -> bytes:
    """Send the whole request before reading; return all data until the connection ends."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(data)
        while more := client.recv(1 << 16):
            received += more
    return received


@pytest.mark.parametrize(
    ("request_line", "size", "status", "reason"),
    [
        ("POST /api/definitions", contract.DOCUMENT_MAX, 503, "2 imports of definitions"),
        ("POST /api/definitions", contract.DOCUMENT_MAX + 1, 503, "2 imports of definitions"),
        ("PUT /api/vhosts/new", 8 << 20, 413, "exceeds the limit of 65536 bytes"),
    ],
)
async def test_a_refusal_arrives_although_the_whole_body_was_sent(
    start: Start, request_line: str, size: int, status: int, reason: str
) -> None:
    broker = await start(users=[ADMIN])
    uploads = []
    for _ in range(UPLOADS_MAX):
        uploads.append(client := await broker.socket("http"))
        head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{login()}Content-Length: 2\r\n"
        await client.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert (await response(client))[0] == 100, "the upload has begun"
    head = f"{request_line} HTTP/1.1\r\nHost: x\r\n{login()}Content-Length: {size}\r\n\r\n"
    received = await asyncio.to_thread(
        send_all_and_read, broker.port("http"), head.encode() + b" " * size
    )
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert reason in json.loads(received.partition(b"\r\n\r\n")[2])["reason"]
    for client in uploads:
        await client.send(b"{}")
        assert (await response(client))[0] == 200
