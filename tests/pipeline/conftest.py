"""Fixtures of the pipeline's tests.

The tests that use Spark run in one process (xdist_group) and share one Spark session, because the
start of a session takes seconds. TRELLIS_SPARK chooses the Spark (spark_places.py).

Tests that use Spark are long tests, except one that is marked `smoke`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra [pipeline] is not installed")

from pyspark.sql import SparkSession

from tests.pipeline import spark_places


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put a test that uses Spark or the wheel into the xdist group `spark`.

    Mark a test that uses Spark as long, unless it is marked `smoke`.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if {"spark", "spark_master"} & fixtures:
        item.add_marker(pytest.mark.spark)
    if item.get_closest_marker("spark") or "connector_wheel" in fixtures:
        item.add_marker(pytest.mark.xdist_group("spark"))
    if item.get_closest_marker("spark") and not item.get_closest_marker("smoke"):
        item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the Spark master or Spark Connect server that TRELLIS_SPARK chooses."""
    with spark_places.place(tmp_path_factory.mktemp("daemons")) as master:
        yield master


@pytest.fixture(scope="session")
def spark(spark_master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_places.session(spark_master, "tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connector_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of trellis-pyspark, built from a copy of the tree."""
    from pyspark_trellis.session import SHIPPED

    tree = tmp_path_factory.mktemp("tree")
    for name in (*SHIPPED, "connector"):
        ignored = shutil.ignore_patterns("__pycache__", "src", "build", "*.egg-info")
        shutil.copytree(spark_places.ROOT / name, tree / name, ignore=ignored)
    shutil.copy2(spark_places.ROOT / "LICENSE", tree)
    target = tree / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", target, tree / "connector"], check=True)
    [wheel] = target.glob("*.whl")
    return wheel
