"""The first command of docs/releases.md, on a copy of the sources with few modules to compile."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.source_tree import ROOT, copy_sources

PAGE: Final = (ROOT / "docs" / "releases.md").read_text()
#: The modules that the test compiles instead of all, whose build takes minutes. One imports the
#: other, and they have no classes: interpreted classes cannot inherit from compiled ones.
COMPILED: Final = ("broker/messages/fates.py", "broker/messages/x_death.py")


def interpreters() -> list[str]:
    """Return the versions of the CPythons for which this machine can build wheels."""
    program = "import sys, release_check; sys.stdout.write(' '.join(release_check.pythons()))"
    tools = ROOT / "tools"
    listed = subprocess.run(
        [sys.executable, "-c", program], cwd=tools, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


@pytest.mark.long
def test_the_command_of_the_page_builds_and_checks_all_files(tmp_path: Path) -> None:
    versions = interpreters()[:2]
    if len(versions) < 2:
        pytest.skip(f"release-check needs two versions of CPython, not {versions}")
    tree = tmp_path / "tree"
    copy_sources(tree)
    lists = tree / "build_backend" / "compiled_modules.py"
    text, count = re.subn(
        r"^COMPILED = \(.*?^\)$", f"COMPILED = {COMPILED}", lists.read_text(), flags=re.M | re.S
    )
    assert count == 1
    lists.write_text(text)
    (tree / ".venv").symlink_to(sys.prefix)
    first = re.search(r"^```\n(.+)\n```$", PAGE, re.MULTILINE)
    assert first is not None
    make, target = first[1].split()
    done = subprocess.run(
        [make, "--old-file=.venv/installed", target, f"RELEASE_PYTHONS={' '.join(versions)}"],
        cwd=tree,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1_500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    release = tree / "build" / "release"
    files = {path.name: path for path in release.iterdir() if path.name != "SHA256SUMS"}
    lines = [f"{sha256(path.read_bytes()).hexdigest()}  {name}" for name, path in files.items()]
    assert (release / "SHA256SUMS").read_text().splitlines() == sorted(lines, key=lambda x: x[66:])
    wheels = {path.name.split("-")[2]: path for path in release.glob("trellis_broker-*.whl")}
    compiled = [f"cp{version.replace('.', '')}" for version in versions]
    assert sorted(wheels) == [*compiled, "py3"]
    for tag in compiled:
        names = zipfile.ZipFile(wheels[tag]).namelist()
        assert any(re.match(r"trellis__mypyc.*\.so$", name) for name in names), names
    assert any(name.endswith(".tar.gz") for name in files)
    assert f"checked on CPython {', '.join(versions)}" in done.stdout
