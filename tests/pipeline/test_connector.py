"""Tests of the distribution trellis-pyspark: it works where the broker is not installed."""

from __future__ import annotations

import json
import subprocess
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pyspark_trellis.session import SHIPPED
from tests.pipeline.written import journal, row

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.util, json, sys
import pyspark_trellis
from pyspark_trellis.bulk import match_topics
from pyspark_trellis.session import ship
from pyspark_trellis.sink import StreamWriter
from pyspark_trellis.source import DefaultSource
from pathlib import Path

source = DefaultSource({"path": sys.argv[1]})
table = pyspark_trellis.read_table(sys.argv[1], ["offset"], pattern="t.*")
print(json.dumps({
    "rows": table.num_rows,
    "schema": source.schema(),
    "files": [pyspark_trellis.__file__, importlib.util.find_spec("matching").origin],
    "broker": list(filter(importlib.util.find_spec, ("broker", "protocols", "trellis"))),
    "shipped": ship(Path(sys.argv[2])).stat().st_size > 0,
}))
"""


@pytest.mark.long
def test_the_wheel_is_pure_and_has_both_packages_whole(connector_wheel: Path) -> None:
    assert connector_wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(connector_wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        kept = {name.rpartition("/")[2] for name in archive.namelist()}
    assert files == {
        path.relative_to(ROOT).as_posix()
        for package in SHIPPED
        for path in (ROOT / package).rglob("*.py")
    }
    assert "LICENSE" in kept


@pytest.mark.long
def test_the_connector_works_in_an_environment_without_the_broker(
    connector_wheel: Path, tmp_path: Path
) -> None:
    """Use the connector in an environment with only its wheel.

    The packages that the wheel needs are on PYTHONPATH, where the editable installation of the
    broker is not found.
    """
    rows = journal(tmp_path / "journal", [row(at, f"t.{at % 3}") for at in range(50)])
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(connector_wheel) as archive:
        archive.extractall(packages)
    ran = subprocess.run(
        [python, "-c", PROGRAM, tmp_path / "journal", tmp_path / "shipped.zip"],
        env={"PYTHONPATH": str(Path(np.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["rows"] == len(rows)
    assert answer["broker"] == []
    assert all(Path(file).is_relative_to(packages) for file in answer["files"])
    assert answer["schema"].startswith("`offset` long")
    assert answer["shipped"]
