"""Compiles the modules listed in build_backend/compiled_modules.py with mypyc.

TRELLIS_PURE=1 leaves every module interpreted. TRELLIS_REQUIRE_COMPILED=1 makes a missing compiler,
missing headers or a failed compilation fatal. Without TRELLIS_REQUIRE_COMPILED, setup.py prints one
warning line and builds an interpreted wheel, which is slower. If mypyc writes C code of an unknown
form, the build stops in any case. TRELLIS_SYMBOLS=1 keeps function names and line numbers in the
compiled modules, for profilers and debuggers; the modules then take more than twice the space.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

from c_code import shorten_code
from compiled_modules import WRITTEN_IN_C, modules, small_modules

ROOT = Path(__file__).resolve().parent

#: The library of all compiled modules.
LIBRARY = "trellis__mypyc"
#: C code of an extension that loads its module from LIBRARY. To include Python.h would take four
#: times the CPU time.
LOADER = """struct _object *PyInit_{name}(void) __attribute__((visibility("default")));
void *PyCapsule_Import(const char *name, int no_block);

struct _object *PyInit_{name}(void)
{{
    struct _object *(*start)(void) = (struct _object *(*)(void))PyCapsule_Import("{capsule}", 0);
    return start ? start() : 0;
}}
"""
#: The stage of the build in which the C files of LIBRARY are compiled.
COMPILING = "the C compiler translates the C code"
#: Names of C files that the compiler makes small instead of fast begin with this word.
SMALL_FILE = "small_"
#: Bytes of C code that one file includes: each file costs 0.18 s of CPU time for the headers.
COMBINED_BYTES = 2_500_000


def compiler_command() -> list[str]:
    """Return the command of the C compiler that setuptools calls."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def obstacle() -> str:
    """Return the reason why modules cannot be compiled here; "" if they can be compiled."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing (on Debian and Ubuntu: apt install python3-dev)"
    compiler = compiler_command()[0]
    if os.name == "posix" and shutil.which(compiler) is None:
        packages = "on Debian and Ubuntu: apt install gcc libc6-dev"
        return f"the C compiler {compiler} is missing ({packages})"
    if importlib.util.find_spec("mypyc") is None:
        return "mypyc is missing (pip install 'mypy[mypyc]')"
    return ""


def fall_back(reason: str) -> None:
    """Warn that the wheel is interpreted, or stop if compiled modules are required."""
    if os.environ.get("TRELLIS_REQUIRE_COMPILED"):
        raise SystemExit(f"trellis: cannot compile: {reason}")
    print(
        f"trellis: WARNING: building without compiled modules; the broker will be slower: {reason}",
        file=sys.stderr,
    )


def report(stage: str) -> None:
    """Print the stage of the build, which tools/build_progress.py reads."""
    print(f"stage: {stage}", flush=True)


def late_linking() -> list[str]:
    """Return the options of GCC for link-time optimisation, or [] if the compiler lacks it.

    With these options, one C file per module compiles in half the CPU time of one file for all
    modules (150 s instead of 300 s), and on all cores; a publication takes the same number
    of instructions. Without these options, modules in separate files take up to 4 % more
    instructions.
    """
    options = [f"-flto={os.cpu_count() or 1}", "-fno-fat-lto-objects"]
    if sys.platform != "linux":
        return []
    compiler = compiler_command()
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(
            "#if !defined(__GNUC__) || defined(__clang__)\n#error\n#endif\n"
            "int probe(void) { return 0; }\n"
        )
        library = Path(directory, "probe.so")
        tried = subprocess.run(
            [*compiler, *options, "-fPIC", "-shared", str(source), "-o", str(library)],
            capture_output=True,
            check=False,
        )
        return options if tried.returncode == 0 and library.exists() else []


def debug_options() -> tuple[list[str], list[str]]:
    """Return the options for the compiler and for the linker about symbols and line numbers."""
    if os.environ.get("TRELLIS_SYMBOLS") or os.name != "posix":
        return [], []
    if sys.platform == "darwin":
        return ["-g0"], ["-Wl,-S,-x"]
    # Only debuggers of C read unwind tables: nothing throws exceptions through C functions.
    small_links = ["-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,--hash-style=gnu"]
    return ["-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"], ["-s", *small_links]


def combined(sources: list[str]) -> list[str]:
    """Write C files that include the C files of several modules, and return the sources with them.

    The modules of SMALL are in files of their own, which are compiled with `-Os`.
    """
    small = {f"__native_{path[:-3].replace('/', '___')}.c" for path in small_modules()}
    files = [source for source in sources if not Path(source).name.startswith("__native_")]
    for prefix, wanted in (("fast_", False), (SMALL_FILE, True)):
        size = 0
        including = ""
        for path in map(Path, sources):
            if not path.name.startswith("__native_") or (path.name in small) != wanted:
                continue
            if size == 0:
                including = ""
                files.append(str(path.with_name(f"{prefix}{len(files)}.c")))
            including += f'#include "{path.name}"\n'
            Path(files[-1]).write_text(including)
            size += path.stat().st_size
            if size > COMBINED_BYTES:
                size = 0
    return files


def make_rare_functions_small(directory: Path) -> None:
    """Mark the functions of the generated header that GCC makes small instead of fast.

    These are the functions that run once, at the import of a module, and those that convert the
    arguments of a call by Python. Other compilers may not know the attribute `optimize`.
    """
    header = directory / "__native_internal_trellis.h"
    text = header.read_text()
    for declaration, attribute in (
        (r"char CPyDef_\w+_____top_level__\(void\)", "cold"),
        (r"PyObject \*CPyPy_\w+\(.*\)", 'optimize("Os")'),
    ):
        marked = rf"\1 __attribute__(({attribute}));"
        text, count = re.subn(rf"^(extern {declaration});$", marked, text, flags=re.MULTILINE)
        if count == 0:
            raise ValueError(
                f"{header} declares no function that matches {declaration}: use the "
                "version of mypy that build_backend/trellis_build.py requires"
            )
    header.write_text(text)


def write_loader(extension: Extension) -> None:
    """Replace the C code of an extension that only loads its module from the library.

    The code of mypyc also serves libraries that depend on each other, and is three times as long.
    """
    function = f"init_{extension.name.replace('.', '___')}"
    [code] = map(Path, extension.sources)
    if f'"{LIBRARY}.{function}"' not in code.read_text():
        raise ValueError(
            f"{code} does not load {function} from {LIBRARY}: use the version of mypy "
            "that build_backend/trellis_build.py requires"
        )
    code.write_text(
        LOADER.format(name=extension.name.rpartition(".")[2], capsule=f"{LIBRARY}.{function}")
    )


class AllOrNothing(build_ext):
    """Builds every extension or none.

    The extension of a module only loads the module from the library of all modules. With
    `Extension.optional`, a failed library could leave such extensions behind, and they would hide
    the source of their modules.
    """

    def finalize_options(self) -> None:
        """Set the build options, and use all cores."""
        super().finalize_options()
        self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        """Build the extensions, and remove all of them if one fails."""
        compile_in_turn = self.compiler.compile
        # The files of the library take nearly all the time.
        library = [
            source
            for extension in self.extensions
            if extension.name == LIBRARY
            for source in extension.sources
        ]
        finished: list[str] = []
        reporting = Lock()
        if library:
            report(f"{COMPILING}: 0 of {len(library)} files")

        def compile_one(source: str, **options: Any) -> list[str]:
            if Path(source).name.startswith(SMALL_FILE):
                options["extra_postargs"] = [*options["extra_postargs"], "-Os"]
            objects: list[str] = compile_in_turn([source], **options)
            if source in library:
                with reporting:
                    finished.append(source)
                    report(f"{COMPILING}: {len(finished)} of {len(library)} files")
                    if len(finished) == len(library):
                        report("the linker optimises and links the machine code")
            return objects

        def compile_at_once(sources: list[str], **options: Any) -> list[str]:
            """Compile the files of an extension in parallel, which setuptools does not."""
            with ThreadPoolExecutor(self.parallel) as pool:
                results = pool.map(lambda source: compile_one(source, **options), sources)
                return [file for objects in results for file in objects]

        self.compiler.compile = compile_at_once
        try:
            super().build_extensions()
        except (BaseError, CCompilerError, OSError) as error:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            fall_back(f"the C compiler failed, see above: {shorten(str(error), 120)}")
        else:
            self.leave_out_sources()

    def leave_out_sources(self) -> None:
        """Remove the Python source of compiled modules from the wheel.

        The package matching keeps its source: `trellis pipeline` sends it to the workers of Spark.
        """
        for path in modules():
            if not path.startswith("matching/"):
                Path(self.build_lib, path).unlink(missing_ok=True)


def extensions() -> list[Extension]:
    """Return the extensions of the compiled modules; [] if modules stay interpreted."""
    if os.environ.get("TRELLIS_PURE"):
        return []
    reason = obstacle()
    if reason:
        fall_back(reason)
        return []
    from mypyc.build import mypycify

    # The build environment lacks most dependencies, so their types are unknown here. Errors in
    # modules that are only imported, such as settings without msgspec, are ignored. Strict checks
    # are done by `make check`.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        late = late_linking()
        report(f"mypyc translates {len(modules())} modules to C code")
        extensions: list[Any] = mypycify(
            [*options, *modules()], opt_level="3", group_name="trellis", multi_file=bool(late)
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the source runs without mypyc
        fall_back(f"mypyc failed, see above: {error!r}")
        return []
    to_compile, to_link = debug_options()
    if late:
        make_rare_functions_small(Path("build"))
        shorten_code(Path("build"), "trellis")
    for extension in extensions:
        # A compiler newer than mypyc may have new warnings.
        extension.extra_compile_args = [
            flag for flag in extension.extra_compile_args if flag != "-Werror"
        ]
        if os.name == "posix" and sys.platform != "darwin":
            # Lets the compiler inline small exported functions: 7 % on every workload. ELF only.
            # Without exported names (except PyInit_..., which Python declares), the compiler also
            # leaves out functions that are not called.
            extension.extra_compile_args += ["-fno-semantic-interposition", "-fvisibility=hidden"]
        if os.name == "posix":
            # To look for warnings takes 5 % of the time, and the C code is mypyc's.
            extension.extra_compile_args.append("-w")
        extension.extra_compile_args += to_compile
        extension.extra_link_args += to_link
        # The library of all modules has many sources if link-time optimisation is possible.
        if len(extension.sources) > 1:
            extension.sources = combined(extension.sources)
            extension.extra_compile_args += late
            extension.extra_link_args += [*late, "-O3", "-fno-semantic-interposition"]
        elif late:
            write_loader(extension)
            extension.extra_compile_args += ["-Os", "-fno-ident"]
            # The loader has neither constructors nor exceptions.
            extension.extra_link_args += ["-nostartfiles", "-Wl,--no-eh-frame-hdr"]
    return extensions + [
        Extension(name, [path], extra_compile_args=to_compile, extra_link_args=to_link)
        for name, path in WRITTEN_IN_C.items()
    ]


if __name__ == "__main__":
    os.chdir(ROOT)
    # If setuptools only reads the metadata, nothing is compiled.
    building = {"bdist_wheel", "build", "build_ext", "install"} & set(sys.argv)
    setup(ext_modules=extensions() if building else [], cmdclass={"build_ext": AllOrNothing})
