"""Fixtures of the pipeline's tests: one Spark session in one process (xdist_group), because a start
takes seconds.

Tests that use Spark are long tests, except one that is marked `smoke`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra [pipeline] is not installed")

from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of this directory, and mark those that use Spark as long.

    This must happen before pytest deselects tests by their marks.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker(
                "smoke"
            ):
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark_trellis.session import start

    session: SparkSession = start(
        "local[2]", "tests", small=True, scratch=tmp_path_factory.mktemp("spark")
    )
    yield session
    session.stop()
