"""The factory that makes a link for each connection of a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from trellis.server.layered_link import LayeredLink
from trellis.server.link import Link
from trellis.server.listener_context import ListenerContext
from trellis.server.rate_limited_link import RateLimitedLink


def link_factory(context: ListenerContext) -> Callable[[], asyncio.Protocol]:
    """Return a function that makes the links of a listener.

    The links of a listener with rate limits are RateLimitedLinks. The links of other listeners are
    LayeredLinks if a PROXY header, TLS or WebSocket is used, and plain Links if not.
    """
    kind = RateLimitedLink if context.rates.enabled else LayeredLink if context.has_layers else Link

    def make() -> asyncio.Protocol:
        return cast(asyncio.Protocol, kind(context))

    return make
