"""The plugin of pytest: `trellis`, a running broker, and `trellis_factory`, which starts more."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trellis.testing.running import RunningBroker, Spawner

    TrellisFactory = Callable[..., RunningBroker]

#: Key in a test's stash for the list of the brokers that the test has started.
_BROKERS: pytest.StashKey[list[RunningBroker]] = pytest.StashKey()


@pytest.fixture(scope="session")
def _trellis_spawner() -> Iterator[Spawner]:
    """Provide the process that starts the brokers of all tests."""
    from trellis.testing.running import Spawner

    spawner = Spawner()
    yield spawner
    spawner.close()


@pytest.fixture
def trellis_factory(
    request: pytest.FixtureRequest, tmp_path: Path, _trellis_spawner: Spawner
) -> Iterator[TrellisFactory]:
    """Provide a function that starts brokers for the test, and stop the brokers after the test.

    The settings of a broker are arguments of the function: `trellis_factory(mqtt_retained=0)`.
    """
    from trellis.testing.running import RunningBroker

    brokers: list[RunningBroker] = request.node.stash.setdefault(_BROKERS, [])

    def start(**settings: Any) -> RunningBroker:
        directory = tmp_path / f"trellis-{len(brokers)}"
        directory.mkdir()
        broker = RunningBroker(_trellis_spawner, directory, settings)
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.stop()


@pytest.fixture
def trellis(trellis_factory: TrellisFactory) -> RunningBroker:
    """Start a broker that is empty, listens on free ports, and stops after the test."""
    return trellis_factory()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show the logs of the test's brokers if the test fails."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        brokers = item.stash.get(_BROKERS, [])
        for number, broker in enumerate(brokers, 1):
            report.sections.append((f"Log of Trellis {number}", broker.log))
