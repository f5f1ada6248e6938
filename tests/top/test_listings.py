"""Tests of the rows of `trellis list`, which the broker makes while its objects change."""

from __future__ import annotations

import pytest

from broker.queues.policies import Policy
from tests.top.conftest import Start
from trellis.monitoring.listings import KINDS


@pytest.mark.parametrize("kind", ["queues", "exchanges", "bindings", "policies"])
async def test_a_list_goes_on_while_virtual_hosts_are_created(start: Start, kind: str) -> None:
    running = await start()
    broker = running.node.broker
    for name in ("first", "second"):
        vhost = broker.create_vhost(name)
        vhost.declare_queue("q")
        vhost.declarations.set_policy(Policy(name, "p", "^x", "queues", 0, {"max-length": 1}), None)
    seen: list[object] = []
    async for row in KINDS[kind](running.node):
        if not seen:
            broker.create_vhost("later")
        seen.append(row["vhost"])
    assert {"first", "second"} <= set(seen)
    assert "later" not in seen
