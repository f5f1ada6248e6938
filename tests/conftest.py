"""What tests of every kind share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.broker import BrokerProcess

pytest_plugins = ["tests.watch"]


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """One broker process that many tests share: each keeps to names of its own."""
    process = BrokerProcess()
    yield process
    process.stop()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A word that no other test uses, fit for a queue name and for one level of a topic."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")[:60] + "-" + uuid4().hex[:8]
