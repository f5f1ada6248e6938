"""Compiles the floors below trellis/, and trellis/'s two hot files, with mypyc.

TRELLIS_PURE=1 leaves every module interpreted. TRELLIS_REQUIRE_COMPILED=1 makes a missing compiler,
missing headers or a failed compilation fatal; without it they give one warning line and a wheel
that works, only slower.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import shorten
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

from compiled_modules import modules

ROOT = Path(__file__).resolve().parent


def compiler_command() -> list[str]:
    """The C compiler that setuptools will call."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def obstacle() -> str:
    """Why nothing can be compiled here, or an empty string."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing (on Debian and Ubuntu: apt install python3-dev)"
    compiler = compiler_command()[0]
    if os.name == "posix" and shutil.which(compiler) is None:
        return f"the C compiler {compiler} is missing (on Debian and Ubuntu: apt install gcc libc6-dev)"
    if importlib.util.find_spec("mypyc") is None:
        return "mypyc is missing (pip install 'mypy[mypyc]')"
    return ""


def fall_back(reason: str) -> None:
    """Say that the wheel will be interpreted, or stop where that is not wanted."""
    if os.environ.get("TRELLIS_REQUIRE_COMPILED"):
        raise SystemExit(f"trellis: cannot compile: {reason}")
    print(
        f"trellis: WARNING: building without compiled modules, which is slower: {reason}",
        file=sys.stderr,
    )


def late_linking() -> list[str]:
    """GCC's options for optimising over all files when they are linked, or none where it is no GCC
    that can.

    A C file for each module and this compile in half the processor time of one file for all (150 s
    instead of 300), on all cores, to the same number of instructions a publication. Without it,
    separate files need up to 4 % more.
    """
    options = [f"-flto={os.cpu_count() or 1}", "-fno-fat-lto-objects"]
    if sys.platform != "linux":
        return []
    compiler = compiler_command()
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(
            "#if !defined(__GNUC__) || defined(__clang__)\n#error\n#endif\nint probe(void) { return 0; }\n"
        )
        made = Path(directory, "probe.so")
        tried = subprocess.run(
            [*compiler, *options, "-fPIC", "-shared", str(source), "-o", str(made)],
            capture_output=True,
            check=False,
        )
        return options if tried.returncode == 0 and made.exists() else []


class AllOrNothing(build_ext):
    """Builds every extension, or none.

    Every module's extension is a thin shell around the group's one library. `Extension.optional`
    drops failures one by one, and a shell that outlives its library hides a module that would have
    worked.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources: list[str], **options: Any) -> list[str]:
            """setuptools has extensions built at once, but the files of one in turn."""
            with ThreadPoolExecutor(self.parallel) as pool:
                made = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [found for several in made for found in several]

        self.compiler.compile = compile_at_once
        try:
            super().build_extensions()
        except (BaseError, CCompilerError, OSError) as error:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            fall_back(f"the C compiler failed, see above: {shorten(str(error), 120)}")


def extensions() -> list[Extension]:
    """The extensions of the compiled modules: none where they are not wanted or cannot be had."""
    if os.environ.get("TRELLIS_PURE"):
        return []
    reason = obstacle()
    if reason:
        fall_back(reason)
        return []
    from mypyc.build import mypycify

    # The build environment holds neither our settings for mypy (strictness is `make check`'s
    # business) nor all our dependencies (the types of those that are absent are unknown, and
    # nothing else changes). Modules that are not compiled are looked at for their types, and their
    # errors are not the compiler's business: without msgspec, which the build environment does not
    # hold, settings have some.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        late = late_linking()
        made: list[Any] = mypycify(
            [*options, *modules()], opt_level="3", group_name="trellis", multi_file=bool(late)
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever mypyc trips over, the source still runs
        fall_back(f"mypyc failed, see above: {error!r}")
        return []
    for extension in made:
        # A compiler younger than mypyc may know new warnings.
        extension.extra_compile_args = [
            flag for flag in extension.extra_compile_args if flag != "-Werror"
        ]
        if os.name == "posix" and sys.platform != "darwin":
            # Lets the compiler inline small functions that are exported too: 7 % on every workload.
            # ELF only.
            extension.extra_compile_args.append("-fno-semantic-interposition")
        if (
            len(extension.sources) > 1
        ):  # The group's library, when late linking makes it of many files.
            extension.extra_compile_args += late
            extension.extra_link_args += [*late, "-O3", "-fno-semantic-interposition"]
    return made


if __name__ == "__main__":
    os.chdir(ROOT)
    # Asked for metadata only, there is nothing to compile.
    building = {"bdist_wheel", "build", "build_ext", "install"} & set(sys.argv)
    setup(ext_modules=extensions() if building else [], cmdclass={"build_ext": AllOrNothing})
