"""A link from a queue or a stream to an HTTP service.

Each of `in_flight` workers takes up to `batch` messages, and repeats their request until the
service accepts the request. If `attempts` requests have failed, the messages go to the dead letter
queue. A message is acknowledged when the service or the dead letter queue has accepted it.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from trellis import logs
from trellis.connect import backoff
from trellis.connect.http_target import GONE, HttpAnswer, HttpTarget
from trellis.connect.link import ConnectorLink, LinkStopped, until_lost
from trellis.connect.message import BrokerMessage
from trellis.connect.settings import BrokerSection, WebhookSection, keys_of
from trellis.connect.source import LinkSource, open_source
from trellis.connect.status import LinkState


class WebhookLink(ConnectorLink):
    """A link that copies messages of a queue or a stream to an HTTP service."""

    def __init__(self, broker: BrokerSection, section: WebhookSection) -> None:
        """Prepare the link. Raises SettingsError if a file with a secret cannot be read."""
        super().__init__(section.name, "webhook")
        self._broker: Final = broker
        self._section: Final = section
        self._keys: Final = keys_of(section)
        #: The time of the event loop before which no request is sent (Retry-After).
        self._paused_until = 0.0
        #: Held by the worker that gathers a batch: messages that arrive go into this batch, and not
        #: one by one to other workers.
        self._gathering: Final = asyncio.Lock()

    async def work(self) -> None:
        """Deliver messages until an error, or until `stopping` is set."""
        target = HttpTarget(self._section, self._keys)
        try:
            async with open_source(self._broker, self._section, self.status) as source:
                self.running()
                async with asyncio.TaskGroup() as tasks:
                    helpers = [
                        tasks.create_task(until_lost(source.session.lost)),
                        tasks.create_task(source.store()),
                    ]
                    workers = [
                        tasks.create_task(self._deliver_all(source, target))
                        for _ in range(self._section.in_flight)
                    ]
                    await self.stopping.wait()
                    await source.stop()
                    await asyncio.wait(workers)
                    for helper in helpers:
                        helper.cancel()
        finally:
            await target.close()

    async def _deliver_all(self, source: LinkSource, target: HttpTarget) -> None:
        """Deliver batches until `stopping` is set."""
        while True:
            async with self._gathering:
                batch = await self._next(source)
            if not batch or not await self._deliver(batch, source, target):
                return

    async def _next(self, source: LinkSource) -> list[BrokerMessage]:
        """Return the next batch of messages; an empty list when `stopping` is set."""
        first = await self._first(source)
        if first is None:
            return []
        batch = [first]
        loop = asyncio.get_running_loop()
        end = loop.time() + self._section.batch_wait
        while len(batch) < self._section.batch:
            try:
                batch.append(source.messages.get_nowait())
                continue
            except asyncio.QueueEmpty:
                pass
            if (left := end - loop.time()) <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(source.messages.get(), left))
            except TimeoutError:
                break
        return batch

    async def _first(self, source: LinkSource) -> BrokerMessage | None:
        """Wait for a message; return None when `stopping` is set."""
        if not source.messages.empty() and not self.stopping.is_set():
            return source.messages.get_nowait()
        get = asyncio.ensure_future(source.messages.get())
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((get, stop), return_when=asyncio.FIRST_COMPLETED)
            return get.result() if get.done() and not stop.done() else None
        finally:
            get.cancel()
            stop.cancel()

    async def _deliver(
        self, batch: list[BrokerMessage], source: LinkSource, target: HttpTarget
    ) -> bool:
        """Send a batch until the service accepts it; after the last attempt, dead-letter the batch.

        Return True once the messages are settled, False if `stopping` is set earlier. Raises
        LinkStopped if the service answers 410 (Gone).
        """
        loop = asyncio.get_running_loop()
        for attempt in range(1, self._section.attempts + 1):
            if await self._wait_for_pause():
                return False
            began = loop.time()
            answer = await target.send(batch)
            self._count(answer, loop.time() - began)
            if answer.accepted:
                for message in batch:
                    await source.settle(message)
                self.status.delivered += len(batch)
                self.status.bytes += sum(len(each.incoming.body) for each in batch)
                return True
            self.status.failed(answer.text)
            if answer.status == GONE:
                # The path and the query of the URL may be secret.
                service = urlsplit(self._section.url).hostname
                raise LinkStopped(
                    f"the service at {service} answered 410 (Gone): correct `url`, and restart the "
                    "connector"
                )
            if answer.retry_after is not None:
                self._paused_until = max(self._paused_until, loop.time() + answer.retry_after)
                self.status.state = LinkState.PAUSED
            if attempt < self._section.attempts:
                self.status.retries += 1
                seconds = backoff.pause(attempt, self._section.retry_first, self._section.retry_max)
                if await self.wait(seconds):
                    return False
        for message in batch:
            await source.dead_letter(message, answer.text, self._section.attempts)
            await source.settle(message)
        logs.warning(
            "connector_dead_lettered",
            link=self._section.name,
            messages=len(batch),
            attempts=self._section.attempts,
            reason=answer.text,
        )
        return True

    async def _wait_for_pause(self) -> bool:
        """Wait until the pause for which the service asked is over.

        Return True as soon as `stopping` is set, else False at the end of the pause.
        """
        loop = asyncio.get_running_loop()
        while (left := self._paused_until - loop.time()) > 0:
            if await self.wait(left):
                return True
        if self.status.state is LinkState.PAUSED:
            self.running()
        return self.stopping.is_set()

    def _count(self, answer: HttpAnswer, seconds: float) -> None:
        self.status.answers[str(answer.status) if answer.status else "error"] += 1
        self.status.took(seconds)
