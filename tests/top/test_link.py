"""How does the broker hang up, hold back, and hold no more than it must?"""

from __future__ import annotations

from tests.top.running import Running


async def test_smoke(running: Running) -> None:
    client = await running.amqp()
    await client.queue("q")
    await client.leave()
    m = await running.mqtt("a")
    await m.ping()
    await m.leave()
    page = await running.scrape()
    assert page.value("rabbitmq_connections_opened_total") == 2
    assert page.value("rabbitmq_connections_closed_total") == 2
