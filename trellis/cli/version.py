"""`trellis version`: versions of Trellis, Python and uvloop."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import msgspec

from trellis import __version__, compiled
from trellis.cli.parsing import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command version."""
    command = add_command(
        commands,
        "version",
        version,
        "print the versions of Trellis, Python and uvloop, and whether the core is compiled",
        "[--json]",
    )
    command.add_argument("--json", action="store_true", help="print a JSON object")


def line() -> str:
    """Return the text `trellis VERSION`."""
    return f"trellis {__version__}"


def version(arguments: argparse.Namespace) -> int:
    """Print the versions of Trellis, Python and uvloop, and if the core is compiled."""
    try:
        uvloop = installed("uvloop")
    except PackageNotFoundError:
        uvloop = None
    python, implementation = platform.python_version(), platform.python_implementation()
    if arguments.json:
        facts = {
            "version": __version__,
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
