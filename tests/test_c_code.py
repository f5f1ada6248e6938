"""Tests that the shortened C code of mypyc behaves as the original code
(build_backend/c_code.py).
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

FIRST: Final = """
def half(number: int) -> int:
    if number % 2:
        raise ValueError("odd")
    return number // 2
"""
SECOND: Final = """
from first import half
from first import half as part


def quarter(number: int) -> int:
    once = half(number)
    return part(
        once
    )
"""
BUILD: Final = """
import sys
from pathlib import Path
from setuptools import setup
from mypyc.build import mypycify
from c_code import shorten_code
made = mypycify(["first.py", "second.py"], opt_level="0", group_name="trellis", multi_file=True)
shorten_code(Path("build"), "trellis")
setup(name="quarters", py_modules=[], ext_modules=made)
"""
USE: Final = """
import traceback
import first, second
assert second.quarter(8) == 2
print(first.__file__.rpartition(".")[2], second.__file__.rpartition(".")[2])
for number in (7, 6):
    try:
        second.quarter(number)
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        print([(frame.filename.rpartition("/")[2], frame.name, frame.lineno) for frame in frames])
"""


@pytest.fixture
def c_code() -> ModuleType:
    spec = importlib.util.spec_from_file_location("c_code", ROOT / "build_backend" / "c_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(*command: object, directory: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'build_backend'}:{directory}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_shortened_code_has_the_same_results_and_tracebacks(tmp_path: Path) -> None:
    if shutil.which("cc") is None or importlib.util.find_spec("mypyc") is None:
        pytest.skip("needs a C compiler and mypyc")
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "second.py").write_text(SECOND)
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "build_them.py").write_text(BUILD)
    interpreted = _run(sys.executable, "use.py", directory=tmp_path).splitlines()
    _run(sys.executable, "build_them.py", "build_ext", "--inplace", directory=tmp_path)
    text = (tmp_path / "build" / "__native_second.c").read_text()
    assert "CPyImport_ImportNative(" not in text
    assert text.count("trellis_import_from(&trellis_module_first") == 2
    assert "trellis_line = 7;" in text
    compiled = _run(sys.executable, "use.py", directory=tmp_path).splitlines()
    assert compiled[0] == "so so"
    assert interpreted[0] == "py py"
    assert interpreted[1:] == compiled[1:]


def test_failures_with_the_same_end_share_an_entry(c_code: ModuleType) -> None:
    step = (
        "    if (unlikely(x == NULL)) {{\n"
        '        CPy_AddTraceback("a.py", "f", {}, CPyStatic_a___globals);\n'
        "        goto {};\n"
        "    }}\n"
    )
    ends = "CPyL1: ;\n    return 2;\nCPyL2: ;\n    return 3;\n"
    steps = step.format(4, "CPyL1") + step.format(5, "CPyL2") + step.format(6, "CPyL1")
    match = c_code.FUNCTION.fullmatch(f"char CPyDef_a___f(void) {{\n{steps}{ends}}}\n")
    short = c_code.share_entries(match)
    assert short.count("CPy_AddTraceback") == 2
    assert "trellis_line = 4;\n        goto trellis_failed_0;" in short
    assert "trellis_line = 6;\n        goto trellis_failed_0;" in short
    assert '"f", 5, CPyStatic_a___globals);\n        goto CPyL2;' in short
    assert '"f", trellis_line, CPyStatic_a___globals);\n    goto CPyL1;\n}\n' in short


def test_code_of_another_form_is_an_error(c_code: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "__native_a.c").write_text("char CPyDef_a___f(void) {\n    return 1;\n}\n")
    with pytest.raises(ValueError, match="unknown form"):
        c_code.shorten_code(tmp_path, "trellis")
