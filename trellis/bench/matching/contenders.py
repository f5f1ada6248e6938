"""Contenders: the algorithms of `matching/`, and peers listed in a `peers.toml`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matching
import trellis
from matching.registry import Algorithm
from trellis.bench.matching.step import CACHED

#: The folder that holds `trellis` and `matching`, from which started processes import them.
_SITE: Final = str(Path(trellis.__file__ or "").parent.parent)
#: Algorithms that a full run measures also without compilation, for docs/matching.md.
INTERPRETED: Final = ("trie", "shapes", "dfa")


@dataclass(frozen=True)
class Contender:
    """A program that the bench measures: an algorithm of `matching/`, the route cache, or a peer.

    A peer is a program outside Trellis that answers the same requests. `missing` is the reason why
    the contender cannot run, "" if it can. `ours` is False for peers.
    """

    name: str
    title: str
    command: tuple[str, ...]
    ours: bool
    idea: str = ""
    origin: str = ""
    missing: str = ""


class ContenderFailed(Exception):
    """Raised if the process of a contender ends, or its answer is not a JSON object.

    A contender is an algorithm or a peer that the bench measures.
    """


class Slow(Exception):
    """Raised if a contender (an algorithm or a peer) gives no answer within the permitted time."""


def ours(interpreted: Sequence[str] = ()) -> list[Contender]:
    """Return a contender for each algorithm of `matching/` and for the route cache.

    Algorithms named in `interpreted` appear a second time, uncompiled, as `NAME-py`.
    """
    contenders = [_ours(algorithm) for algorithm in matching.algorithms()]
    contenders.append(
        Contender(
            CACHED,
            "route cache, trie",
            _command(CACHED),
            True,
            "a cache of answers by topic before the trie",
            "own design",
        )
    )
    known = {contender.name: contender for contender in contenders}
    for name in interpreted:
        one, command = known[name], _command(name, "--interpreted")
        contenders.append(
            Contender(
                f"{name}-py", f"{one.title}, pure", command, True, one.idea, one.origin, one.missing
            )
        )
    return contenders


def missing(algorithm: Algorithm) -> str:
    """Return the reason why an algorithm cannot be loaded; "" if it can."""
    try:
        algorithm.load()
    except ImportError as error:
        return str(error)
    return ""


def _ours(algorithm: Algorithm) -> Contender:
    return Contender(
        algorithm.name,
        algorithm.name,
        _command(algorithm.name),
        True,
        algorithm.idea,
        algorithm.origin,
        missing(algorithm),
    )


def _command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "trellis.bench.matching.step", *words)


def peers(folder: Path) -> list[Contender]:
    """Return the peers in the folder's peers.toml. Raises ValueError if the file is invalid."""
    file = folder / "peers.toml"
    try:
        entries: list[dict[str, Any]] = tomllib.loads(file.read_text())["peer"]
        return [_peer(folder, **entry) for entry in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read the list of peers in {file}: {error}") from None


def _peer(
    folder: Path,
    name: str,
    title: str,
    command: Sequence[str],
    missing: str,
    idea: str = "",
    origin: str = "",
) -> Contender:
    """Return a peer of peers.toml as a contender.

    Words of `command` that name files in the folder become absolute paths. If the first word names
    no file in the folder, the peer is not installed, and `missing` says how to install the peer.
    """
    words = [
        str((folder / word).absolute()) if (folder / word).is_file() else word for word in command
    ]
    return Contender(
        name,
        title,
        tuple(words),
        False,
        idea,
        origin,
        "" if Path(words[0]).is_absolute() else missing,
    )


class RunningContender:
    """The running process of a contender, which is an algorithm or a peer."""

    def __init__(self, contender: Contender) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        environment = {**os.environ, "PYTHONPATH": _SITE} if contender.ours else None
        self._process = subprocess.Popen(
            contender.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """Send a request and return the contender's answer.

        Raises Slow if no answer arrives within `patience` seconds, and ContenderFailed if the
        process ended or the answer is not a JSON object.
        """
        line = b""
        until = time.monotonic() + patience
        try:
            self._in.write(json.dumps(request).encode() + b"\n")
            self._in.flush()
            while not line.endswith(b"\n"):
                if not select.select([self._out], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise Slow(f"no answer within {patience:g} s")
                data = os.read(self._out.fileno(), 65_536)
                if not data:
                    raise ContenderFailed(
                        self._last_error()
                        or f"the process ended with exit code {self._process.wait()}"
                    )
                line += data
            answer = json.loads(line)
        except BrokenPipeError:
            raise ContenderFailed(self._last_error() or "the process ended") from None
        except ValueError:
            raise ContenderFailed(f"the answer is not JSON: {line[:80]!r}") from None
        if not isinstance(answer, dict):
            raise ContenderFailed(f"the answer is not a JSON object: {line[:80]!r}")
        return answer

    def close(self) -> None:
        """Kill the contender's process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for file in (self._in, self._out, self._errors):
            try:
                file.close()
            except BrokenPipeError:  # The process ended before it read all input.
                pass

    def _last_error(self) -> str:
        """Return the last line that the process wrote to stderr, "" if it wrote none."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def __enter__(self) -> RunningContender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
