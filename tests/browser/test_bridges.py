"""The bridges on the web page, in a headless Chromium: states, counts, errors, and renewal."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.bridge.running import BridgingBroker, Recorder, bridge
from tests.browser.test_page import browser_at

pytestmark = pytest.mark.long
GUEST: Final = ("guest", "guest")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_page_lists_the_bridges_and_renews_the_list(
    tmp_path: Path, width: int, scheme: str
) -> None:
    remote = BridgingBroker(tmp_path / "remote")
    table = bridge("office", remote.mqtt.port, ["s/# out 1", "c/# in 1"])
    local = BridgingBroker(tmp_path / "local", table)
    # The import of definitions does not check a shovel as a request to set the parameter does. So
    # an invalid shovel exists, and the page lists it with the reason.
    row = {"component": "shovel", "vhost": "/", "name": "<b>odd</b>", "value": {"src-uri": 7}}
    local.request("POST", "definitions", {"parameters": [row]})
    local.wait_up("office")
    local.wait("<b>odd</b>", lambda row: row["state"] == "invalid")
    near = Recorder(local.mqtt.port, "near")
    for _ in range(3):
        near.publish("s/n", b"x")
    local.wait("office", lambda row: row["sent"] == 3 and row["in_flight"] == 0)
    with browser_at(f"{local.url}/", tmp_path) as page:
        page.open("#/node", "caption", width, scheme, GUEST)
        page.do("wait", selector="caption", text="2 of 2 bridges, shovels and federation links")
        page.do("wait", selector="tbody tr", text="<b>odd</b>shovelinvalid00exactly one of")
        page.do("wait", selector="tbody tr", text="officemqttup30")
        page.check(f"bridges-{width}", width)
        # Without a new visit of the page, the list shows more messages, a deletion and a lost link.
        near.publish("s/n", b"x")
        page.do("wait", selector="tbody tr", text="officemqttup40")
        local.request("DELETE", "parameters/shovel/%2F/%3Cb%3Eodd%3C%2Fb%3E")
        page.do("wait", selector="caption", text="1 of 1 bridges, shovels and federation links")
        remote.stop()
        page.do("wait", selector="tbody tr", text="officemqttconnecting40the remote broker")
    near.close()
    local.stop()


def test_the_page_says_that_there_is_no_bridge(tmp_path: Path) -> None:
    local = BridgingBroker(tmp_path / "local")
    with browser_at(f"{local.url}/", tmp_path) as page:
        page.open("#/node", "caption", login=GUEST)
        page.do("wait", selector="p", text="No bridge, shovel or federation link is defined.")
    local.stop()
