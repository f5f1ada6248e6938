"""Server-sent events of the web page: the state of the broker, once a second for all viewers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from trellis.http.gateway.link import HttpRefusal
from trellis.http.gateway.paging import encode

#: Seconds between two events.
EVENT_SECONDS: Final = 1.0


class Caller(Struct, frozen=True):
    """The sender of a request for the events of the web page: its page session and its address.

    `direct` is False if the request may come from a proxy or from a page of another site.
    """

    session: str
    address: str
    port: int
    direct: bool


#: Asks the broker for its state on behalf of a caller; returns the decoded answer. Raises
#: HttpRefusal, TimeoutError.
AskForState = Callable[[Caller], Awaitable[Any]]


class Viewer:
    """The open event stream of one browser.

    A viewer that reads slowly misses events instead of filling memory.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._news = asyncio.Event()
        self._latest = b""
        #: True once the session has ended: the stream ends after its last event.
        self.ended = False

    def put(self, event: bytes) -> None:
        """Make `event` the next event of the stream, in place of an event that was not sent yet."""
        self._latest = event
        self._news.set()

    def end(self) -> None:
        """End the stream after the event that waits to be sent."""
        self.ended = True
        self._news.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of the stream until it ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            latest, self._latest = self._latest, b""
            if latest:
                yield latest
            if self.ended:
                return


class EventFeed:
    """Sends the state of the broker to all viewers once a second, while a page is open.

    One request to the broker serves all viewers. The requests use the sessions of the viewers in
    turn, so the broker checks each session regularly. A viewer gets no further events if its
    session has ended, or if its user may no longer see the state.
    """

    def __init__(self, ask: AskForState) -> None:
        self._ask = ask
        self._viewers: list[Viewer] = []
        self._task: asyncio.Task[None] | None = None

    async def open(self, caller: Caller) -> Response:
        """Return the response with the event stream for a new viewer.

        Raises HttpRefusal if the caller may not see the state, and TimeoutError if the broker does
        not answer.
        """
        first = await self._ask(caller)
        viewer = Viewer(caller)
        viewer.put(b"retry: 2000\n" + _event(first))

        async def stream() -> AsyncIterator[bytes]:
            self._viewers.append(viewer)
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            try:
                async for event in viewer.events():
                    yield event
            finally:
                if viewer in self._viewers:
                    self._viewers.remove(viewer)

        return StreamingResponse(stream(), 200, media_type="text/event-stream")

    async def _run(self) -> None:
        try:
            while self._viewers:
                await asyncio.sleep(EVENT_SECONDS)
                if self._viewers:
                    await self._tell()
        finally:
            self._task = None

    async def _tell(self) -> None:
        viewer = self._viewers.pop(0)
        self._viewers.append(viewer)
        try:
            event = _event(await self._ask(viewer.caller))
        except HttpRefusal as refusal:
            if refusal.status in (401, 403):
                viewer.put(b"event: ended\ndata: {}\n\n")
                viewer.end()
                if viewer in self._viewers:
                    self._viewers.remove(viewer)
                return
            event = _trouble(refusal.reason)
        except TimeoutError:
            event = _trouble("the broker does not answer")
        for each in self._viewers:
            each.put(event)


def _trouble(reason: str) -> bytes:
    """Return the event `trouble`, with the reason why the broker's state is not available."""
    return b"event: trouble\ndata: " + encode({"reason": reason}) + b"\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
