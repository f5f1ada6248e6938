"""Arguments and sizes of declared objects, for the tests of declarations."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec

from tests.clients import Amqp

Q, X = spec.Queue, spec.Exchange


def args(**given: Any) -> Any:
    return {name.replace("_", "-"): value for name, value in given.items()}


def depth(client: Amqp, queue: str) -> tuple[int, int]:
    """Declare the queue passively; return the message count and consumer count of the reply."""
    [ok] = client.send(Q.Declare(queue=queue, passive=True))
    return ok.message_count, ok.consumer_count
