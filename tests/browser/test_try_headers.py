"""Tests of the web page's view "Routing": the trial of a binding of a headers exchange.

The trial uses the headers of the messages of the last hour.
"""

from __future__ import annotations

import pytest

from tests.broker import BrokerProcess
from tests.browser.test_page import Page, api, broker, page, settings

__all__ = ["broker", "page", "settings"]

pytestmark = pytest.mark.long


@pytest.mark.parametrize("width", [1280, 360])
def test_a_binding_of_a_headers_exchange_is_tried(
    page: Page,
    broker: BrokerProcess,
    width: int,
) -> None:
    api(broker, "PUT", "queues/%2F/orders", {})
    for number in range(6):
        kind = "invoice" if number % 3 else "order"
        message = {
            "properties": {"headers": {"kind": kind, "number": number}},
            "routing_key": "k",
            "payload": "m",
            "payload_encoding": "string",
        }
        api(broker, "POST", "exchanges/%2F/amq.headers/publish", message)
    page.open("#/routing", "#try form", width)
    page.do("choose", selector="#try form select >> nth=0", value="add")
    page.do("fill", selector="#try form input >> nth=0", text="amq.headers")
    page.do("fill", selector="#try form input >> nth=2", text="orders")
    page.do("fill", selector="#try form input >> nth=3", text="x-match=all, kind=order, number=3")
    page.do("click", selector="#try form button")
    page.do("wait", selector="#try li", text="x-match=all kind=order number=3")
    page.do("click", selector="#try button.main")
    page.do("wait", selector="#try p", text="tried on 1 topic with 6 messages of the last")
    page.do("wait", selector="#try tr", text="queue orders" + "gains" + "1" + "1")
    page.do("wait", selector="#try .command", text="orders x-match=all kind=order number=3")
    page.check("try-headers", width)
