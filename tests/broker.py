"""A broker process for tests: started on free ports, and checked for a clean stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from resource import RLIMIT_NOFILE
from typing import Final, NamedTuple

from tests import forks

ROOT: Final = Path(__file__).parent.parent
#: Flags with which any number of brokers run side by side and leave no files.
_FLAGS: Final = (
    "--config",
    os.devnull,
    "--data-dir",
    ":memory:",
    "--amqp-port",
    "0",
    "--mqtt-port",
    "0",
    "--metrics-port",
    "0",
    "--http-port",
    "0",
)
#: Seconds that a broker may take to stop.
_STOP: Final = 20


def command(*flags: str) -> list[str]:
    """Return the command line of `python -m trellis serve` with this Python.

    The `flags` follow the flags that every broker of the tests has, and override them.
    """
    return [sys.executable, "-m", "trellis", "serve", *_FLAGS, *flags]


def environment() -> dict[str, str]:
    """Return the environment variables of the tests, except the variables that configure a
    broker.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}


def run_command(
    *words: str,
    directory: Path = ROOT,
    limits: Mapping[int, int] | None = None,
    **settings: object,
) -> subprocess.CompletedProcess[str]:
    """Run a command of trellis in a directory.

    `settings` are environment variables without the prefix TRELLIS_, for example HTTP_PORT.
    `limits` are maxima of resources, such as RLIMIT_FSIZE.
    """
    variables = {f"TRELLIS_{name}": str(value) for name, value in settings.items()}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = forks.start(
            "trellis",
            *words,
            stdout=out.fileno(),
            stderr=errors.fileno(),
            environment=environment() | variables,
            directory=directory,
            limits=limits,
        )
        code = process.wait(60)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), errors.read())


class Address(NamedTuple):
    """The host and the port of a listener."""

    host: str
    port: int


class BrokerProcess:
    """A running `python -m trellis serve` with this Python: from source, or the installed wheel.

    The `flags` follow the flags that every broker of the tests has, and override them.
    """

    def __init__(
        self,
        *flags: str,
        descriptors: int = 0,
        variables: Mapping[str, str] | None = None,
        module: str = "trellis",
    ) -> None:
        """Start the broker, with further environment variables.

        `descriptors` is the broker's hard limit of file descriptors; 0 for the limit of the test
        process. `module` is the module to run, which has the command line of `trellis`.
        """
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self.process = forks.start(
            module,
            "serve",
            *_FLAGS,
            *flags,
            stderr=self._stderr.fileno(),
            environment=environment() | dict(variables or {}),
            limits={RLIMIT_NOFILE: descriptors} if descriptors else None,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        if ready[:1] != ["ready"]:
            raise self._failure(f"the broker did not start, exit code {self.process.wait()}")
        self.addresses = {
            name: _address(value) for name, _, value in (word.partition("=") for word in ready[1:])
        }
        if os.environ.get("TRELLIS_REQUIRE_COMPILED") and " compiled=yes " not in self.log:
            raise self._failure("TRELLIS_REQUIRE_COMPILED is set, and this broker is not compiled")

    @property
    def amqp(self) -> Address:
        return self.addresses["amqp"]

    @property
    def mqtt(self) -> Address:
        return self.addresses["mqtt"]

    @property
    def amqp_url(self) -> str:
        """The AMQP URL of the virtual host `/` for the user guest."""
        return self.amqp_url_of("guest", "guest")

    def amqp_url_of(self, user: str, password: str) -> str:
        return f"amqp://{user}:{password}@{self.amqp.host}:{self.amqp.port}/%2F"

    @property
    def log(self) -> str:
        """The log that the broker has written to stderr so far."""
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0).decode(
            errors="replace"
        )

    def stop(self) -> None:
        """Send SIGTERM, and check that the broker exits with code 0 and logged no error or
        traceback.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP)
        except subprocess.TimeoutExpired:
            raise self._failure(f"the broker did not stop within {_STOP} s") from None
        if code:
            raise self._failure(f"the broker ended with exit code {code}")
        if any(
            "Traceback" in line or line.split()[1:2] == ["error"] for line in self.log.splitlines()
        ):
            raise self._failure("the broker wrote errors")
        self.kill()

    def kill(self) -> None:
        """Kill the broker if it still runs, and close its pipes."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()

    def _failure(self, what: str) -> AssertionError:
        log = self.log
        self.kill()
        return AssertionError(f"{what}\n{log}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))
