"""Fixtures and settings that all tests share: the property profile, a broker, unique names."""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import mypy_extensions
import pytest
from hypothesis import settings

# Uncompiled, a native integer type such as i64 is a class with a slow constructor, which returns an
# int. With int itself, the tests of the source need less CPU time.
for _name in ("i64", "i32", "i16", "u8"):
    setattr(mypy_extensions, _name, int)

from tests import seeding, wal_sums  # noqa: E402
from tests.broker import BrokerProcess  # noqa: E402  (the product's modules import i64)

if TYPE_CHECKING:
    from tests.cluster.programs import Kfake

pytest_plugins = ["tests.watch", "tests.scheduling", "tests.prefork"]

#: Thresholds of the garbage collector in the processes of the tests. With Python's defaults, (700,
#: 10, 10), a tenth of the CPU time was spent in collections and in the callback that Hypothesis
#: runs for each collection.
THRESHOLDS: Final = (50_000, 20, 20)
gc.set_threshold(*THRESHOLDS)

#: Name of the profile for property tests. `fixed` runs the same examples every time. `long` (`make
#: test-random`) draws new examples, TIMES times as many. A failure prints how to reproduce it; its
#: example is then added to the test as an @example.
PROFILE: Final = os.environ.get("TRELLIS_PROPERTIES", "fixed")
TIMES: Final = {"fixed": 1, "long": 10}
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=100 * TIMES["long"], deadline=None, print_blob=True)
settings.load_profile(PROFILE)
if PROFILE == "fixed":
    seeding.install()
wal_sums.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Multiply each property test's own number of examples by the factor of the profile."""
    times = TIMES[PROFILE]
    functions: set[Any] = set()
    machines: set[Any] = set()
    for item in items if times > 1 else ():
        function: Any = getattr(item, "obj", None)
        machine: Any = getattr(item, "cls", None)
        function = getattr(function, "__func__", function)
        if isinstance(getattr(machine, "settings", None), settings):
            machines.add(machine)
        elif isinstance(
            chosen := getattr(function, "_hypothesis_internal_use_settings", None), settings
        ):
            if chosen is not settings.default and function not in functions:
                functions.add(function)
                function._hypothesis_internal_use_settings = settings(
                    chosen, max_examples=times * chosen.max_examples
                )
    for machine in machines:
        machine.settings = settings(
            machine.settings, max_examples=times * machine.settings.max_examples
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while modules are imported: nearly all of their objects stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze the objects of the collected tests, so that a test's own gc.collect() is fast."""
    gc.collect()
    gc.freeze()
    gc.enable()


_finished = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """Freeze all objects after every 50th test, because tests that count objects unfreeze them."""
    if next(_finished) % 50 == 0:
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True, to skip a file, if only tests marked `alone` are selected and it has none."""
    if config.option.markexpr.startswith("alone") and collection_path.name.startswith("test_"):
        return True if b"mark.alone" not in collection_path.read_bytes() else None
    return None


@pytest.fixture(scope="session")
def kfake() -> Iterator[Kfake]:
    """Start one kfake for many tests; each test uses a topic of its own."""
    # Most test runs need no client of Kafka.
    from tests.cluster.programs import Kfake

    process = Kfake()
    yield process
    process.close()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """Start one broker process for many tests; each test uses names of its own."""
    process = BrokerProcess()
    yield process
    process.stop()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses, valid as a queue name and as one topic level."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")[:60] + "-" + uuid4().hex[:8]
