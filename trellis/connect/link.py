"""The base class of all links: a link copies messages, and connects again after each error."""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from typing import Final

from trellis import logs
from trellis.connect import backoff
from trellis.connect.amqp import ERRORS, text_of
from trellis.connect.status import LinkState, LinkStatus

#: Seconds before the first attempt to connect again, and longest pause.
RECONNECT_FIRST: Final = 0.5
RECONNECT_MAX: Final = 30.0
#: If a link has worked for this number of seconds, its next pause is RECONNECT_FIRST again.
SETTLED_SECONDS: Final = 10.0


class LinkStopped(Exception):
    """Raised if a link must stop and not connect again, such as after the answer 410 (Gone)."""


class ConnectorLink(ABC):
    """A link: copies messages from one source to one target. A subclass implements `work`."""

    def __init__(self, name: str, kind: str) -> None:
        self.status: Final = LinkStatus(name, kind)
        #: Set when the process ends: the link finishes the attempts under way.
        self.stopping: Final = asyncio.Event()

    @abstractmethod
    async def work(self) -> None:
        """Connect and copy messages. When `stopping` is set, finish the messages and return."""

    async def run(self) -> None:
        """Call `work` again after each error, until `stopping` is set or LinkStopped is raised."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            began = loop.time()
            attempt += 1
            try:
                await self.work()
            except* LinkStopped as group:
                self._stopped(_first(group))
            except* Exception as group:  # noqa: BLE001  (a fault of one link must not end others)
                attempt = 1 if loop.time() - began > SETTLED_SECONDS else attempt
                self._failed(_first(group))
            finally:
                self.status.in_flight = 0
            if self.status.state is LinkState.STOPPED:
                return
            if not self.stopping.is_set():
                await self.wait(backoff.pause(attempt, RECONNECT_FIRST, RECONNECT_MAX))

    def running(self) -> None:
        """Set the state RUNNING, because all connections of the link are open."""
        if self.status.state is not LinkState.RUNNING:
            logs.info("connector_link_runs", link=self.status.name)
        self.status.state = LinkState.RUNNING

    async def wait(self, seconds: float) -> bool:
        """Wait for `seconds` and return False; return True as soon as `stopping` is set."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _failed(self, error: BaseException) -> None:
        text = text_of(error)
        if not isinstance(error, ERRORS):
            logs.error("connector_link_fault", link=self.status.name, error=_place_of(error))
        if self.status.state is not LinkState.FAILING or text != self.status.error:
            logs.warning("connector_link_failed", link=self.status.name, error=text)
        self.status.state = LinkState.FAILING
        self.status.reconnects += 1
        self.status.failed(text)

    def _stopped(self, error: BaseException) -> None:
        self.status.state = LinkState.STOPPED
        self.status.failed(str(error))
        logs.error("connector_link_stopped", link=self.status.name, error=str(error))


def _place_of(error: BaseException) -> str:
    """Return the text of an error and the last lines of its traceback, in one line."""
    lines = traceback.format_exception(error)
    return " ".join(" ".join(lines[-4:]).split())


async def until_lost(lost: asyncio.Future[None]) -> None:
    """Wait until a connection is lost, and raise the reason, which is the exception of `lost`."""
    await asyncio.shield(lost)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in an exception group, whose members may be groups, too."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
