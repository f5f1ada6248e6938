"""`trellis version`: versions of Trellis, Python and uvloop."""

import argparse
import platform
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

import trellis
from trellis import compiled
from trellis.cli.parsing import Commands, add_command

#: Name of the distribution that holds Trellis.
DISTRIBUTION: Final = "trellis-broker"
#: Top-level packages of Trellis whose names packages of other distributions may have too.
PACKAGES: Final = ("broker", "matching", "protocols", "pyspark_trellis", "trellis")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis version`."""
    command = add_command(
        commands,
        "version",
        version,
        "print the versions of Trellis, Python and uvloop, and whether the core is compiled",
        "[--json]",
    )
    command.add_argument("--json", action="store_true", help="print a JSON object")


class PrintVersion(argparse.Action):
    """The flag `--version`."""

    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        """Print `trellis VERSION`, and exit."""
        print(line())
        parser.exit()


def line() -> str:
    """Return the text `trellis VERSION`."""
    return f"trellis {trellis.__version__}"


def conflicts(owners: Mapping[str, list[str]]) -> list[str]:
    """Return a warning for each package of Trellis that another distribution has installed too.

    `owners` has, for each package name, the names of the distributions that have installed it.
    """
    return [
        f"warning: the package '{package}' of {DISTRIBUTION} is also installed by {other}, which "
        f"may have replaced its files; uninstall {other}, then reinstall {DISTRIBUTION}"
        for package in PACKAGES
        for other in sorted(set(owners.get(package, [])) - {DISTRIBUTION})
    ]


def version(arguments: argparse.Namespace) -> int:
    """Print the versions of Trellis, Python and uvloop, and whether the core is compiled.

    Print a warning for each package of Trellis that another distribution has installed too.
    """
    from importlib.metadata import PackageNotFoundError, packages_distributions
    from importlib.metadata import version as installed

    for warning in conflicts(packages_distributions()):
        print(warning, file=sys.stderr)
    try:
        uvloop = installed("uvloop")
    except PackageNotFoundError:
        uvloop = None
    python, implementation = platform.python_version(), platform.python_implementation()
    if arguments.json:
        facts = {
            "version": trellis.__version__,
            "python": python,
            "implementation": implementation,
            "compiled": compiled(),
            "uvloop": uvloop,
        }
        print(msgspec.json.encode(facts).decode())
    else:
        print(line())
        print(f"python {python} ({implementation})")
        print(f"compiled {'yes' if compiled() else 'no'}")
        print(f"uvloop {uvloop or 'not installed'}")
    return 0
