"""Build and check the files of a release that one machine can build: `make release-check`.

The program builds one source distribution. From this distribution it builds a compiled wheel for
each installed CPython version, and the pure wheel. It also builds the distribution trellis-pyspark
(connector/). The program checks that

- two builds give the same C code;
- a compiled wheel is stripped and not larger than MOST_BYTES;
- in a new virtual environment, its modules are compiled, and the broker serves and stops;
- the description fits the package index, and the changelog describes the version.

The files stay in build/release.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Final

from release_notes import notes

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "build" / "release"
#: Largest size of a compiled wheel, in bytes.
MOST_BYTES: Final = 6_000_000
#: Supported minor versions of CPython 3.
MINORS: Final = range(11, 15)
#: Sections that an ELF file has only if it is not stripped.
DEBUG_SECTIONS: Final = (b".symtab", b".debug_")


def run(*command: object, directory: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed. End the program if the command fails."""
    clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=clean | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        print(ended.stdout[-4000:], file=sys.stderr)
        sys.exit(
            "release-check: this command failed, see its output above: "
            f"{' '.join(map(str, command))}"
        )
    return ended.stdout


def pythons() -> dict[str, str]:
    """Return the interpreters to build for, by version such as "3.11".

    PATH is searched, then the versions of pyenv. The environment variable RELEASE_PYTHONS limits
    the choice: it is a list of versions, separated by spaces.
    """
    wanted = os.environ.get("RELEASE_PYTHONS", "").split()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    interpreters = {}
    for version in (f"3.{minor}" for minor in MINORS):
        paths = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        for path in paths:
            if path and (not wanted or version in wanted) and _has_headers(str(path)):
                interpreters[version] = str(path)
                break
    return interpreters


def _has_headers(python: str) -> bool:
    code = (
        "import ensurepip, pathlib, sysconfig, sys;"
        "sys.exit(not pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    )
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def c_code(source: Path, seed: str) -> str:
    """Return a checksum of the C code that mypyc makes of the modules, with this hash seed."""
    build = source / "build"
    shutil.rmtree(build, ignore_errors=True)
    run(
        sys.executable,
        "-c",
        "import setup; assert setup.extensions()",
        directory=source,
        environment={
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(source / "build_backend"), str(source)]),
            "TRELLIS_REQUIRE_COMPILED": "1",
        },
    )
    checksum = hashlib.sha256()
    for path in sorted(build.glob("__native*.[ch]")):
        checksum.update(path.name.encode() + path.read_bytes())
    shutil.rmtree(build)
    return checksum.hexdigest()


def unstripped(wheel: Path) -> list[str]:
    """Return the extension modules of a wheel that have symbols or debug information."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            name
            for name in archive.namelist()
            if name.endswith(".so")
            and any(section in archive.read(name) for section in DEBUG_SECTIONS)
        ]


def try_wheel(python: str, wheel: Path, compiled: bool) -> None:
    """Install a wheel into a new virtual environment, and check that the broker serves and stops.

    If `compiled`, also check that the modules are compiled.
    """
    venv = TARGET / "venv"
    run(python, "-m", "venv", "--clear", venv)
    pip = [venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", wheel)
    if compiled:
        run(venv / "bin" / "python", ROOT / "build_backend" / "compiled_modules.py")
    run(ROOT / "tools" / "container-try.sh", venv)
    shutil.rmtree(venv)


def build_wheel(python: str, source: Path, directory: Path, option: str) -> Path:
    """Build a wheel from the unpacked source distribution, and return its path.

    `option` is the environment variable that is set to 1 during the build.
    """
    venv = TARGET / "build-venv"
    run(python, "-m", "venv", "--clear", venv)
    pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    directory.mkdir(parents=True, exist_ok=True)
    run(*pip, "wheel", "--no-deps", "--wheel-dir", directory, source, environment={option: "1"})
    shutil.rmtree(venv)
    [wheel] = directory.glob("*.whl")
    return wheel.rename(TARGET / wheel.name)


def main() -> None:
    """Build everything, check it, and print one line for each file."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    notes((ROOT / "CHANGELOG.md").read_text(), version)
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    interpreters = pythons()
    if len(interpreters) < 2:
        sys.exit(
            "release-check: two versions of CPython 3.11 to 3.14, with their C headers, are "
            f"required on PATH or in pyenv; found {', '.join(interpreters) or 'none'}"
        )

    run(sys.executable, "-m", "build", "--sdist", "--outdir", TARGET)
    [sdist] = TARGET.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(TARGET, filter="data")
    source = sdist.with_name(sdist.name.removesuffix(".tar.gz"))
    if c_code(source, "1") != c_code(source, "2"):
        sys.exit("release-check: two runs of mypyc gave different C code for the same source")
    print(
        f"{sdist.name}: {sdist.stat().st_size} bytes, two builds gave the same C code", flush=True
    )

    for python_version, python in interpreters.items():
        begun = time.monotonic()
        wheel = build_wheel(python, source, TARGET / "new", "TRELLIS_REQUIRE_COMPILED")
        seconds = time.monotonic() - begun
        size = wheel.stat().st_size
        names = unstripped(wheel)
        if size > MOST_BYTES or names:
            sys.exit(
                f"release-check: {wheel.name} has {size} bytes (allowed: {MOST_BYTES}) and "
                f"these unstripped modules: {names}"
            )
        try_wheel(python, wheel, compiled=True)
        print(
            f"{wheel.name}: {size} bytes, built in {seconds:.0f} s, the broker served on CPython "
            f"{python_version}",
            flush=True,
        )

    pure = build_wheel(sys.executable, source, TARGET / "new", "TRELLIS_PURE")
    if not pure.name.endswith("-none-any.whl"):
        sys.exit(f"release-check: the uncompiled wheel {pure.name} must be for every platform")
    try_wheel(sys.executable, pure, compiled=False)
    print(f"{pure.name}: {pure.stat().st_size} bytes, the uncompiled broker served")

    run(sys.executable, "-m", "build", "--outdir", TARGET, ROOT / "connector")
    [connector] = TARGET.glob("trellis_pyspark-*.whl")
    print(f"{connector.name}: {connector.stat().st_size} bytes, built from its source distribution")

    shutil.rmtree(source)
    shutil.rmtree(TARGET / "new")
    files = sorted(path for path in TARGET.iterdir() if path.is_file())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (TARGET / "SHA256SUMS").write_text("".join(lines))
    missing = [f"3.{minor}" for minor in MINORS if f"3.{minor}" not in interpreters]
    print(
        f"checked on CPython {', '.join(interpreters)}; not checked: {', '.join(missing) or 'none'}"
    )


if __name__ == "__main__":
    main()
