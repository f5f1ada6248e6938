"""The web page of a cluster's nodes, in a headless Chromium.

The tests show an active node, a standby, a node that switches to a standby, and a node that gets no
answer from the replicated log.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.browser.test_page import Page, browser_at
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, NodeProcess, node_over
from tests.cluster.test_switch import PATIENT, pair, switch
from trellis.cluster.membership import FENCED

pytestmark = pytest.mark.long


def open_node(page: Page, width: int = 1280, scheme: str = "light") -> None:
    """Open the page, log in, and open the view Node."""
    page.do("open", width=width, scheme=scheme)
    page.do("login", user="guest", password="guest")
    page.do("view", hash="#/node", until="caption")


def page_of(node: NodeProcess) -> str:
    return f"http://{node.addresses['http']}/"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_active_node_shows_its_cluster(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path, width: int, scheme: str
) -> None:
    first, second = pair(nodes, server, tmp_path)
    with browser_at(page_of(first), tmp_path) as page:
        open_node(page, width, scheme)
        page.do("wait", selector="h2", text="Cluster broker")
        page.do("wait", selector=".card", text="activestate of this node")
        page.check("cluster-active", width)
        # The port of a standby answers with the address of the active node.
        seen = page.do("visit", url=page_of(second), until="body")
        assert seen["text"].strip() == (
            "this node is a standby of cluster 'broker': connect to "
            f"{first.addresses['http']}, which is active"
        )
        page.do("picture", name="cluster-standby")


def test_a_page_follows_a_switch_to_the_new_active_node(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, second = pair(nodes, server, tmp_path)
    with browser_at(page_of(first), tmp_path) as page:
        open_node(page)
        # The log answers nothing in the midst of the switch.
        switching = threading.Thread(target=switch, args=(first, "second"))
        switching.start()
        page.do("wait", selector="#notice", text="The broker does not answer")
        page.do("picture", name="cluster-switching")
        switching.join()
        second.wait_for("ready")
        # As a service manager would, start the node again. It follows the new active node.
        assert first.process.wait(PATIENCE) == FENCED
        port = first.addresses["http"].rpartition(":")[2]
        nodes.append(node_over(server, tmp_path / "first", PATIENT, "", port))
        nodes[-1].wait_for("following")
        page.do("wait", selector="#notice", text=f"connect to {second.addresses['http']}")
        page.check("cluster-switched", 1280)
        link = page.do("href", selector="#notice a")["href"]
        assert link == page_of(second)
        page.do("visit", url=link, until="form.login")
        page.do("login", user="guest", password="guest")
        page.do("view", hash="#/node", until="caption")
        page.do("wait", selector=".card", text="activestate of this node")
        page.do("wait", selector=".card", text="2epoch")


def test_the_page_says_that_the_log_does_not_answer_and_recovers(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, _ = pair(nodes, server, tmp_path)
    with browser_at(page_of(first), tmp_path) as page:
        open_node(page)
        server.moves.clear()
        page.do(
            "wait", selector="#notice", text="No new figures: the replicated log of this node's"
        )
        page.check("cluster-log-away", 1280)
        server.moves.set()
        page.do("gone", selector="#notice")
        page.do("view", hash="#/now", until=".sentence b")
        page.do("view", hash="#/node", until="caption")
        page.do("wait", selector=".card", text="activestate of this node")


def test_the_figures_of_the_cluster_are_renewed(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first, _ = pair(nodes, server, tmp_path)
    with browser_at(page_of(first), tmp_path) as page:
        open_node(page)
        page.do("wait", selector=".card", text="last offset")
        before = last_offset(page)
        first.channel().queue_declare("durable", durable=True)
        end = time.monotonic() + PATIENCE
        while last_offset(page) <= before:
            assert time.monotonic() < end, "the card shows the offset of a minute ago"


def last_offset(page: Page) -> int:
    """Reload the view Node, and return the offset that it shows as the last offset of the log."""
    shown = page.do("view", hash="#/node", until="caption")["text"]
    match = re.search(r"([\d,]+)last offset", shown)
    assert match is not None, shown
    return int(match[1].replace(",", ""))
