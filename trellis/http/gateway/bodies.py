"""Bodies of requests: reads them within limits, and divides definitions documents into rows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from trellis.http import contract
from trellis.http.gateway.link import HttpRefusal, bad_request

#: Size in bytes at which a batch of rows of a definitions document is full.
PART_BYTES: Final = 32 << 10

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
#: Patterns of JSON text up to the next bracket (_TO_BRACKET), or up to the next comma or bracket
#: (_TO_COMMA_OR_BRACKET). Brackets and commas inside JSON strings do not count.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TO_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+', re.DOTALL)
_TO_COMMA_OR_BRACKET: Final = re.compile(
    rb'[^",\[\]{}]*+(?:' + _STRING + rb'[^",\[\]{}]*+)*+', re.DOTALL
)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
#: A batch of rows of a definitions document: section, error in the section or "", rows as JSON.
DocumentPart = tuple[str, str, list[bytes]]


class Disconnected(Exception):
    """Raised if the client closed the connection before its request was complete."""


class BodyReader:
    """The body of one request, which is read while it arrives."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes]) -> None:
        self._receive = receive
        self._announced = int(headers.get(b"content-length", b"0"))
        #: True if the request has a body.
        self.present = self._announced > 0 or b"transfer-encoding" in headers
        #: True if all of the body was read.
        self.finished = not self.present
        #: True if the client sends the body only after the response 100 Continue.
        self.expected = headers.get(b"expect", b"").lower() == b"100-continue"

    async def read(self, most: int, seconds: float, setting: str = " (limits.handshake)") -> bytes:
        """Read the body and return it.

        `setting` is the setting that gives `seconds`, for the error. Raises HttpRefusal for a body
        of more than `most` bytes, or a body that does not arrive within `seconds`, and
        Disconnected.
        """
        too_large = HttpRefusal(
            413, "too_large", f"the body of the request exceeds the limit of {most} bytes"
        )
        if self._announced > most:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while not self.finished:
                    data += await self._next()
                    if len(data) > most:
                        raise too_large
        except TimeoutError:
            raise HttpRefusal(
                503,
                "timeout",
                f"the body of the request did not arrive within {seconds:g} s{setting}, so the "
                "request has changed nothing: send the request again",
            ) from None
        return bytes(data)

    async def _next(self) -> bytes:
        self.expected = False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self.finished = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data


def cut_document(data: bytes, sections: list[str]) -> Iterator[DocumentPart]:
    """Yield the rows of a definitions document in batches, in the order of `sections`.

    The rows are not decoded. Only the rows of one batch are in memory at a time, apart from `data`:
    a document of 64 MiB may have tens of millions of rows. Raises HttpRefusal if the document is
    not a JSON object.
    """
    # A structure skips unknown names. A dictionary would keep them all, possibly millions.
    fields = [(section, Raw, Raw(b"")) for section in sections]
    try:
        document = msgspec.json.decode(data, type=msgspec.defstruct("Document", fields))
    except msgspec.ValidationError:
        raise bad_request(
            "the definitions must be a JSON object with lists named " + ", ".join(sections)
        ) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from None
    for section in sections:
        text: Raw = getattr(document, section)
        if text:
            yield from _cut_section(section, memoryview(text))


def _cut_section(section: str, text: memoryview) -> Iterator[DocumentPart]:
    if text[0] != ord("["):
        yield section, "the section must be a list", []
        return
    part: list[bytes] = []
    size = 0
    for at, (start, end) in enumerate(_row_spans(text)):
        if end - start > contract.ROW_MAX:
            yield section, _too_long(at, end - start), []
            continue
        if size + end - start > PART_BYTES and part:
            yield section, "", part
            part, size = [], 0
        part.append(bytes(text[start:end]))
        size += end - start
    if part:
        yield section, "", part


def _too_long(at: int, size: int) -> str:
    """Return the error for the entry `at` of a section (the first one is 0) of `size` bytes."""
    return f"entry {at} (counted from 0) has {size} bytes; the limit is {contract.ROW_MAX} bytes"


def _row_spans(text: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the start and the end of each row of `text`, a valid JSON list."""
    depth = 1
    start = at = _skip(_SPACE, text, 1)
    while depth:
        at = _skip(_TO_COMMA_OR_BRACKET if depth == 1 else _TO_BRACKET, text, at)
        byte = text[at]
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
        if byte == ord(",") or (not depth and at > start):
            yield start, at
            start = _skip(_SPACE, text, at + 1)
        at += 1


def _skip(pattern: re.Pattern[bytes], text: memoryview, at: int) -> int:
    """Return the end of the pattern's match at offset `at`, where the pattern must match."""
    match = pattern.match(text, at)
    assert match is not None, f"the pattern {pattern.pattern!r} does not match an empty text"
    return match.end()
