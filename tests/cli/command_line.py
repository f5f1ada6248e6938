"""Runs `trellis` commands in this process, without a broker."""

import pytest

from trellis.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of one command."""
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Return the error of a command: one line on stderr, with nothing on stdout."""
    ended, out, err = run(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert err.startswith("trellis: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    return err.removeprefix("trellis: ")[:-1]
