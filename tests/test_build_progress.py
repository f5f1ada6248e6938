"""The lines that `make run` prints while it compiles, and the log of the build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from setuptools import Distribution, Extension

from tests.source_tree import ROOT, load_program

#: A build of two stages, with other output between them, that ends with an exit code.
BUILD: Final = """
import sys
print("gcc -c one.c")
print("  stage: mypyc translates 2 modules", flush=True)
print("  stage: the C compiler: 0 of 2 files")
print("trellis: WARNING: slow", file=sys.stderr)
print("  stage: the C compiler: 1 of 2 files", flush=True)
sys.exit(int(sys.argv[1]))
"""
#: A script in place of the Python in the Makefile's virtual environment. It runs programs with the
#: Python of the tests, but `-m` (for pip) only prints lines of a build.
PYTHON: Final = f"""#!/bin/sh
if [ "$1" != -m ]; then exec {sys.executable} "$@"; fi
echo '  stage: the C compiler: 0 of 2 files'
echo '  trellis: WARNING: slow'
exit $PIP_CODE
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_program(ROOT / "tools" / "build_progress.py", monkeypatch)


@pytest.mark.parametrize("code", [0, 3])
def test_without_a_terminal_each_stage_is_one_line(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    log = tmp_path / "wheel.log"
    assert tool.main(log, [sys.executable, "-c", BUILD, str(code)]) == code
    assert capsys.readouterr().out.splitlines() == [
        f"trellis: {tool.FIRST}",
        "trellis: mypyc translates 2 modules",
        "trellis: the C compiler",
    ]
    lines = log.read_text().splitlines()
    assert len(lines) == 5
    assert "gcc -c one.c" in lines and "trellis: WARNING: slow" in lines


def test_on_a_terminal_the_stage_is_printed_again_in_each_interval(tool: ModuleType) -> None:
    progress = tool.StageReport(repeats=True, start=100.0)
    assert progress.elapse(100.0 + tool.INTERVAL / 2) == []
    assert progress.elapse(100.0 + tool.INTERVAL) == [f"{tool.FIRST} (10 s)"]
    assert progress.read("  stage: compiling: 0 of 2 files\n", 112.0) == ["compiling"]
    assert progress.read("  stage: compiling: 1 of 2 files\n", 115.0) == []
    assert progress.read("gcc -c two.c\n", 123.0) == ["compiling: 1 of 2 files (23 s)"]
    assert progress.elapse(130.0) == []
    assert progress.read("  stage: linking\n", 131.0) == ["linking"]
    assert progress.elapse(150.0) == ["linking (50 s)"]


def test_a_pipe_gets_no_repetitions(tool: ModuleType) -> None:
    progress = tool.StageReport(repeats=False, start=0.0)
    assert progress.read("  stage: linking\n", 1.0) == ["linking"]
    assert progress.elapse(1_000.0) == []


def test_silence_is_noticed_while_the_build_prints_nothing(tool: ModuleType) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as reading, os.fdopen(write_end, "w") as writing:
        lines = tool.arriving(reading, 0.001)
        assert next(lines) == ""
        writing.write("stage: one\n")
        writing.close()
        assert [line for line in lines if line] == ["stage: one\n"]


def test_setup_py_reports_the_files_of_the_library_and_then_the_linker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    setup_py = load_program(ROOT / "setup.py", monkeypatch)
    if setup_py.obstacle().partition(" is missing")[0] not in ("", "mypyc"):
        pytest.skip(setup_py.obstacle())
    monkeypatch.chdir(tmp_path)
    sources = ["one.c", "two.c", "three.c"]
    for number, name in enumerate(sources):
        Path(name).write_text(f"int function_{number}(void) {{ return {number}; }}\n")
    Path("loader.c").write_text("int loader(void) { return 0; }\n")
    extensions = [Extension(setup_py.LIBRARY, sources), Extension("loader", ["loader.c"])]
    command = setup_py.AllOrNothing(Distribution({"name": "x", "ext_modules": extensions}))
    monkeypatch.setattr(command, "leave_out_sources", lambda: None)
    command.ensure_finalized()
    command.run()
    printed = capfd.readouterr().out.splitlines()
    stages = [line.removeprefix("stage: ") for line in printed if line.startswith("stage: ")]
    assert stages == [
        *(f"{setup_py.COMPILING}: {count} of 3 files" for count in range(4)),
        "the linker optimises and links the machine code",
    ]


@pytest.mark.parametrize("code", [0, 1])
def test_the_makefile_prints_the_stages_and_then_the_warnings(tmp_path: Path, code: int) -> None:
    for name in ("Makefile", "tools/build_progress.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".run" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o700)
    (tmp_path / ".run" / "pyvenv.cfg").touch()
    # The tests themselves may run under make. Its variables would make a nested make print more
    # lines.
    outside = {name: it for name, it in os.environ.items() if not name.startswith("MAKE")}
    build = subprocess.run(
        ["make", "dist/built"],
        cwd=tmp_path,
        env=outside | {"PIP_CODE": str(code)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = build.stdout.splitlines()
    assert lines[1:3] == [
        "trellis: pip installs the packages of the build",
        "trellis: the C compiler",
    ]
    if code:
        assert build.returncode == 2
        assert lines[-1] == "trellis: the build failed; its output is in build/wheel.log"
    else:
        assert build.returncode == 0, build.stderr
        assert lines[3:] == ["trellis: WARNING: slow"]
