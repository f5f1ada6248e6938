"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.telemetry.collector import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()
