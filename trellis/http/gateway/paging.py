"""Pages of long lists: filter, sort, page and select columns.

    page, page_size (at most 500)     name, use_regex     sort, sort_reverse     columns

Without `page`, the response is a JSON list. With `page`, the response is an object with the
list as `items`, and the total and filtered number of rows.
"""

from __future__ import annotations

import base64
import heapq
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.errors import PreconditionFailed
from broker.patterns import NAME_MAX, bounded_pattern
from trellis.http.contract import PAGE_SIZE
from trellis.http.gateway.link import HttpRefusal, bad_request

#: Number of rows that are encoded or freed at once, before other threads can run.
SLICE_ROWS: Final = 100
PAGE_SIZE_MAX: Final = 500
#: Number of rows that are sorted at once.
SORT_SLICE: Final = 1_000

Row = dict[str, Any]


class PageQuery:
    """The query parameters that page, filter and sort a list.

    The constructor raises HttpRefusal for an invalid parameter.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        self.paged = "page" in query
        self.page = _number(query, "page", 1)
        self.size = _number(query, "page_size", PAGE_SIZE)
        if self.size > PAGE_SIZE_MAX:
            raise bad_request(
                f"the parameter 'page_size' is {self.size}; the maximum is {PAGE_SIZE_MAX}"
            )
        self.columns = [name for name in query.get("columns", "").split(",") if name]
        self.sort = query.get("sort", "")
        self.reverse = query.get("sort_reverse") in ("true", "1")
        self.takes = _filter(query.get("name", ""), query.get("use_regex") in ("true", "1"))


def encode(value: object) -> bytes:
    """Encode a value as JSON."""
    return msgspec.json.encode(value, enc_hook=str)


def encode_rows(rows: list[Row]) -> bytes:
    """Encode rows as a JSON list, and empty the given list of rows.

    Call this function in a thread: it works in slices, so that the event loop can run.
    """
    parts: list[bytes] = []
    rows.reverse()
    while rows:
        some = rows[-SLICE_ROWS:]
        some.reverse()
        del rows[-SLICE_ROWS:]
        parts.append(encode(some)[1:-1])
    return b"[" + b",".join(parts) + b"]"


def encode_messages(rows: list[Row]) -> bytes:
    """Encode messages as a JSON list, their payloads as text or base64. Call this in a thread.

    A payload that is not UTF-8, or whose `payload_encoding` is base64, becomes base64.
    """
    for row in rows:
        row["payload"], row["payload_encoding"] = _text_of(row["payload"], row["payload_encoding"])
    return encode_rows(rows)


def _text_of(payload: bytes, wanted: str) -> tuple[str, str]:
    """Return a payload as text, and the encoding of the text: string or base64.

    If `wanted` is "auto", only a payload that is not UTF-8 becomes base64. If `wanted` is "base64",
    every payload becomes base64.
    """
    if wanted == "auto":
        try:
            return payload.decode(), "string"
        except UnicodeDecodeError:
            pass  # Not UTF-8: it is encoded as base64.
    return base64.b64encode(payload).decode(), "base64"


def encode_page(rows: list[Row], wanted: PageQuery) -> bytes:
    """Filter and sort a list, and encode the list or one page of it as JSON.

    Slow: call this in a thread. Raises HttpRefusal if the list has no such page.
    """
    total = len(rows)
    takes = wanted.takes
    if takes is not None:
        rows = [row for row in rows if takes(str(row.get("name", "")))]
    if wanted.sort:
        rows = _sorted(rows, wanted.sort, wanted.reverse)
    if not wanted.paged:
        return encode_rows(_select_columns(rows, wanted.columns))
    count = len(rows)
    pages = -(-count // wanted.size)
    if wanted.page > max(1, pages):
        raise HttpRefusal(
            400,
            "page_out_of_range",
            f"page {wanted.page} does not exist; the last page is {max(1, pages)}",
        )
    start = (wanted.page - 1) * wanted.size
    items = _select_columns(rows[start : start + wanted.size], wanted.columns)
    head = encode(
        {
            "filtered_count": count,
            "item_count": len(items),
            "page": wanted.page,
            "page_count": pages,
            "page_size": wanted.size,
            "total_count": total,
        }
    )
    while rows:
        del rows[-SLICE_ROWS:]
    return head[:-1] + b',"items":' + encode_rows(items) + b"}"


def _sorted(rows: list[Row], column: str, reverse: bool) -> list[Row]:
    """Return rows in the order of a column. Sorts in slices, between which other threads run."""
    key = _key_of(column)
    pieces = [
        sorted(rows[at : at + SORT_SLICE], key=key, reverse=reverse)
        for at in range(0, len(rows), SORT_SLICE)
    ]
    return list(heapq.merge(*pieces, key=key, reverse=reverse))


def _key_of(column: str) -> Callable[[Row], tuple[int, float, str]]:
    path = column.split(".")

    def key(row: Row) -> tuple[int, float, str]:
        value = _value(row, path)
        if isinstance(value, int | float):
            return (1, float(value), "")
        return (0, 0.0, "") if value is None else (2, 0.0, str(value))

    return key


def _select_columns(rows: list[Row], columns: list[str]) -> list[Row]:
    if not columns:
        return rows
    cut: list[Row] = []
    for row in rows:
        kept: Row = {}
        for column in columns:
            path = column.split(".")
            value = _value(row, path)
            if value is None:
                continue
            place = kept
            for part in path[:-1]:
                place = place.setdefault(part, {})
            place[path[-1]] = value
        cut.append(kept)
    return cut


def _value(row: Row, path: list[str]) -> Any:
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _filter(name: str, regex: bool) -> Callable[[str], object] | None:
    if not name:
        return None
    if not regex:
        lower = name.lower()
        return lambda text: lower in text.lower()
    try:
        search = bounded_pattern(name, re.IGNORECASE | re.DOTALL).search
    except PreconditionFailed as error:
        raise bad_request(f"the parameter 'name' is invalid: {error}") from None
    return lambda text: search(text[:NAME_MAX])


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "") or str(default)
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise bad_request(
            f"the parameter '{name}' must be a whole number of at least 1, not '{text}'"
        )
    return int(text)
