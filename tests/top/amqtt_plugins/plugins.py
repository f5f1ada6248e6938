"""Plugins of amqtt for the tests. Some of them misbehave on purpose."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin

ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
FILE = "amqtt.plugins.authentication.FileAuthPlugin"
TABOO = "amqtt.plugins.topic_checking.TopicTabooPlugin"
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"


def here(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Says(BaseAuthPlugin):  # type: ignore[misc]  # amqtt ships no types
    """A plugin whose verdict on each login is its option `answer`."""

    async def authenticate(self, *, session: Any) -> Any:
        return self.config.answer

    @dataclass
    class Config:
        answer: Any = None


class SaysToo(Says):
    pass


class SaysAsWell(Says):
    pass


class Broken(BaseAuthPlugin):  # type: ignore[misc]
    async def authenticate(self, *, session: Any) -> bool:
        raise LookupError(f"no such password: {session.password}")


class Waits(BaseAuthPlugin):  # type: ignore[misc]
    """Wrong on purpose: a plugin that waits forever, as for a database that does not answer."""

    ended = 0

    async def authenticate(self, *, session: Any) -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            Waits.ended += 1
        return True


class Hangs(BaseAuthPlugin):  # type: ignore[misc]
    """Wrong on purpose: a plugin that blocks its thread until `released` is set, at most 10 s."""

    released = threading.Event()

    async def authenticate(self, *, session: Any) -> bool:
        Hangs.released.wait(10)
        return True


class Roles(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc]
    """A plugin that finds a client's role at the login, and checks the role for each topic.

    It records its calls in `seen`.
    """

    seen: list[tuple[Any, ...]] = []  # noqa: RUF012

    async def authenticate(self, *, session: Any) -> bool:
        await asyncio.sleep(0)
        session.attributes["role"] = session.password
        return True

    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool:
        Roles.seen.append(
            (session.username, session.client_id, session.attributes["role"], topic, action)
        )
        return bool(topic.startswith(session.attributes["role"]))


class TopicSays(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> Any:
        return self.config.answer

    @dataclass
    class Config:
        answer: Any = None


class TopicWaits(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool:
        await asyncio.sleep(0)
        return True


class TopicBroken(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool:
        raise LookupError(session.password)


class Lives(BaseTopicPlugin):  # type: ignore[misc]
    """A plugin that records its start and close events."""

    life: list[str] = []  # noqa: RUF012

    async def on_broker_pre_start(self) -> None:
        assert asyncio.get_running_loop() is self.context.loop
        Lives.life.append("start")

    async def on_broker_pre_shutdown(self) -> None:
        Lives.life.append("shutdown")

    async def close(self) -> None:
        Lives.life.append("close")
