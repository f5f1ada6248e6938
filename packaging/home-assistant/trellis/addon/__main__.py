"""Runs the broker with the options of the app, until Home Assistant stops the app.

python -m addon [--user UID] [--supervisor URL] [--data DIR] [--ssl DIR] [--run DIR] [--config DIR]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import IO

from addon.options import (
    Folders,
    OptionsError,
    read_options,
    system_passwords,
    write_settings,
)
from addon.supervisor import Supervisor

#: Environment variables that the broker does not get: tokens of the Supervisor's API.
SECRETS = ("SUPERVISOR_TOKEN", "HASSIO_TOKEN")


def main() -> int:
    """Run the broker; return its exit code, or 2 if the options cannot be used."""
    arguments = _arguments()
    folders = Folders(arguments.data, arguments.ssl, arguments.run, arguments.config)
    try:
        options = read_options(folders.data / "options.json")
        passwords = system_passwords(folders.data / "system_users.json")
        write_settings(options, passwords, folders)
    except OptionsError as error:
        print(f"trellis app: {error}", file=sys.stderr)
        return 2
    supervisor = Supervisor(arguments.supervisor, os.environ.get("SUPERVISOR_TOKEN", ""))
    broker = _start(folders, arguments.user)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _stop(broker, number, frame))
    assert broker.stdout is not None
    announcing = threading.Thread(
        target=_announce, args=(broker.stdout, supervisor, passwords), daemon=True
    )
    announcing.start()
    code = broker.wait()
    supervisor.end()
    supervisor.withdraw()
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="addon", description=__doc__)
    parser.add_argument("--user", type=int, help="number (uid) of the user and group of the broker")
    parser.add_argument("--supervisor", default="http://supervisor", metavar="URL")
    for name, folder in (("data", "/data"), ("ssl", "/ssl"), ("run", "/run/trellis")):
        parser.add_argument(f"--{name}", type=Path, default=Path(folder), metavar="DIR")
    parser.add_argument("--config", type=Path, default=Path("/config"), metavar="DIR")
    return parser.parse_args()


def _start(folders: Folders, user: int | None) -> subprocess.Popen[str]:
    """Start the broker.

    If `user` is given, make this user the owner of the broker's files first, and run the broker as
    this user and group.
    """
    directory = folders.data / "trellis"
    directory.mkdir(mode=0o700, exist_ok=True)
    if user is not None:
        for path in (folders.run, *folders.run.iterdir(), directory, *directory.rglob("*")):
            # A link that the broker's user has made must not give away another file.
            os.chown(path, user, user, follow_symlinks=False)
    config = os.pathsep.join(map(str, folders.settings))
    return subprocess.Popen(
        [sys.executable, "-m", "trellis", "serve"],
        env={name: value for name, value in os.environ.items() if name not in SECRETS}
        | {"TRELLIS_CONFIG": config},
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def _announce(output: IO[str], supervisor: Supervisor, passwords: dict[str, str]) -> None:
    """Print the output of the broker; announce the broker to the Supervisor when it is ready."""
    for line in output:
        print(line, end="", flush=True)
        if line.startswith("ready "):
            supervisor.announce(passwords)


def _stop(broker: subprocess.Popen[str], number: int, frame: FrameType | None) -> None:
    broker.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
