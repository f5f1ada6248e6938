"""The plugin of pytest: `trellis`, a running broker, and `trellis_factory`, which starts more."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from trellis.testing.running import RunningBroker
    from trellis.testing.starting import Spawner

    TrellisFactory = Callable[..., RunningBroker]

#: Key in a test's stash for the list of the brokers that the test has started.
_BROKERS: pytest.StashKey[list[RunningBroker]] = pytest.StashKey()
#: Key in the run's stash for the process that starts brokers, once it is needed.
_SPAWNER: pytest.StashKey[Spawner] = pytest.StashKey()
#: Pattern of a function with one of the fixtures as a parameter, and of a mark that requests one.
_REQUEST: Final = re.compile(
    rb"""\bdef\s+\w+\s*\([^)]*\btrellis(_factory)?\b|\busefixtures\([^)]*["']trellis"""
)


def _spawner(config: pytest.Config) -> Spawner:
    """Return the process that starts the brokers of this run; start the process if necessary.

    The process loads the broker while pytest imports and collects tests.
    """
    from trellis.testing.starting import Spawner

    if _SPAWNER not in config.stash:
        config.stash[_SPAWNER] = Spawner()
        config.stash[_SPAWNER].start()
    return config.stash[_SPAWNER]


def _prepare(config: pytest.Config, file: Path) -> None:
    """Start the process that starts brokers if the file has tests that request a broker."""
    if _SPAWNER not in config.stash and file.suffix == ".py":
        if not config.known_args_namespace.collectonly and _REQUEST.search(file.read_bytes()):
            _spawner(config)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the process that starts brokers, if a test file on the command line requests a broker.

    The process then loads the broker while pytest imports the conftest files. If pytest-xdist runs
    the tests, each of its worker processes starts its own process.
    """
    given = early_config.known_args_namespace
    if not getattr(given, "numprocesses", None):
        for argument in given.file_or_dir:
            file = Path(argument.partition("::")[0])
            if file.is_file():
                _prepare(early_config, file)


@pytest.hookimpl(tryfirst=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Start the process that starts brokers, before the import of a file that requests a broker."""
    _prepare(parent.config, file_path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the process that starts brokers, if a test uses a fixture that needs the process.

    The fixture may be in another file, so `pytest_collect_file` has not seen that the test needs a
    broker.
    """
    if not session.config.option.collectonly:
        if any("_trellis_spawner" in getattr(item, "fixturenames", ()) for item in session.items):
            _spawner(session.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process that starts brokers."""
    if _SPAWNER in config.stash:
        config.stash[_SPAWNER].close()
        del config.stash[_SPAWNER]


@pytest.fixture(scope="session")
def _trellis_spawner(pytestconfig: pytest.Config) -> Spawner:
    """Provide the process that starts the brokers of all tests."""
    return _spawner(pytestconfig)


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
        broker.close()


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
