"""Tests of the commands that need no broker: config, check-config, hash-password and version."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from argon2 import PasswordHasher

import trellis
from tests.cli.command_line import error_of, run
from trellis.auth.passwords import verify
from trellis.settings.options import OPTIONS
from trellis.settings.rendering import MASK, default_file

NO_PASSWORD = "no password given; type one, or pass one on standard input"


# --- config, check-config, serve ---


def test_config_prints_the_default_file_even_beside_a_broken_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("broker.toml").write_text("broken")
    assert run(capsys, "config") == (0, default_file(), "")


def test_effective_values_come_with_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("amqp.port = 1")
    _, out, _ = run(capsys, "config", "--effective", "--config", "a.toml", "--log-level", "debug")
    assert "port = 1  # a.toml\n" in out
    assert 'level = "debug"  # --log-level\n' in out


def test_effective_values_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = PasswordHasher(1, 8, 1).hash("word")
    Path("a.toml").write_text(
        f"amqp.port = 1\nhttp.enabled = false\n[cluster.options]\n'sasl.password' = '{hidden}'\n"
        f"[[users]]\nname = 'ann'\npassword_hash = '{hidden}'\n"
        "rules = ['allow subscribe #']\n"
    )
    words = ("config", "--effective", "--json", "--config", "a.toml", "--log-level", "debug")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    rows = {row["key"]: row for row in json.loads(out)}
    assert rows.keys() == OPTIONS.keys()
    assert rows["amqp.port"] == {"key": "amqp.port", "value": 1, "source": "a.toml"}
    assert rows["http.enabled"]["value"] is False
    assert rows["log.level"] == {"key": "log.level", "value": "debug", "source": "--log-level"}
    assert rows["mqtt.port"] == {"key": "mqtt.port", "value": 1883, "source": "default"}
    assert rows["cluster.options"]["value"] == {"sasl.password": MASK}
    (user,) = rows["users"]["value"]
    assert (user["name"], user["password_hash"]) == ("ann", MASK)
    assert user["rules"] == ["allow subscribe #"]
    assert hidden not in out


def test_the_default_file_has_no_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "config", "--json").startswith("--json needs --effective: ")


def test_valid_settings_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("amqp.port = 1")
    Path("b.toml").write_text("mqtt.enabled = false")
    code, out, _ = run(capsys, "check-config", "--config", "a.toml", "--config", "b.toml")
    assert (code, out) == (0, "ok: amqp=1 metrics=15692 http=15672 (a.toml, b.toml)\n")
    assert run(capsys, "check-config")[1].endswith("(no settings given: all defaults)\n")
    _, out, _ = run(capsys, "check-config", "--config", "a.toml", "--json")
    answer = json.loads(out)
    assert (answer["ports"]["amqp"], answer["sources"]) == (1, ["a.toml"])


def test_check_config_reads_the_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(
        capsys, "check-config", "--mqtts-enabled", "true", "--tls-certificate", "gone.pem"
    )
    assert code == 2
    assert error.startswith(
        "trellis: tls.certificate: gone.pem cannot be read (No such file or directory); "
        "give a PEM file that "
    )


@pytest.mark.parametrize("command", ["serve", "check-config", "health", "list queues"])
def test_error_in_settings_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    Path("a.toml").write_text("amqp.prot = 1")
    error = error_of(capsys, *command.split(), "--config", "a.toml")
    assert error == "a.toml: amqp.prot: unknown key; the nearest is amqp.port"


def test_closed_output_causes_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    root = str(Path(trellis.__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-m", "trellis", "config"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environ,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


# --- hash-password ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_password_from_standard_input_is_hashed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("pass word\n"))
    code, out, _ = run(capsys, "hash-password")
    assert code == 0
    assert out.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert PasswordHasher().verify(out.strip(), "pass word")
    monkeypatch.setattr("sys.stdin", io.StringIO("pass word\n"))
    code, out, _ = run(capsys, "hash-password", "--scram")
    assert code == 0 and verify(out.strip(), b"pass word")


def type_in(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], then: type[BaseException] = EOFError
) -> None:
    """Simulate a terminal at which a user types `words`; any further read raises `then`."""
    left = list(words)

    def typed(prompt: str) -> str:
        if not left:
            raise then
        return left.pop(0)

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", typed)


def test_prompt_asks_for_the_password_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, ["word", "word"])
    _, out, _ = run(capsys, "hash-password")
    assert PasswordHasher().verify(out.strip(), "word")
    type_in(monkeypatch, ["word", "world"])
    assert error_of(capsys, "hash-password") == (
        "the two typed passwords differ; type the same password twice"
    )
    type_in(monkeypatch, [])
    assert error_of(capsys, "hash-password") == NO_PASSWORD


def test_interrupt_ends_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, ["word"], KeyboardInterrupt)
    assert run(capsys, "hash-password") == (130, "", "")


@pytest.mark.parametrize(
    ("typed", "error"),
    [("\n", NO_PASSWORD), ("\udcff\n", "the password must be UTF-8 text")],
)
def test_invalid_password_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, error: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert error_of(capsys, "hash-password") == error


# --- version ---


def test_version_lists_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "version")
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert lines["trellis"] == trellis.__version__
    assert lines["compiled"] == ("yes" if trellis.compiled() else "no")
    _, out, _ = run(capsys, "version", "--json")
    facts = json.loads(out)
    assert facts["version"] == trellis.__version__
    assert facts["compiled"] is trellis.compiled()
    assert set(facts) == {"version", "python", "implementation", "compiled", "uvloop"}
    assert run(capsys, "--version")[1] == f"trellis {trellis.__version__}\n"
