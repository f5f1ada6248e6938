"""Commands that configure, check and query a broker: their output, exit codes and errors."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
from argon2 import PasswordHasher

import trellis
from tests.addresses import free_port
from trellis import cli
from trellis.auth.passwords import verify
from trellis.cli import COMMANDS, main
from trellis.cli.api_client import api_url
from trellis.cli.parsing import CommandError, Parser
from trellis.cli.table import Row, columns_of, table
from trellis.settings import Http, Settings
from trellis.settings.options import OPTIONS
from trellis.settings.rendering import MASK, default_file

SETTINGS_COMMANDS = ("serve", "check-config", "config", "cluster check", "store verify")
LOG = ["--cluster-name", "--cluster-servers", "--cluster-topic"]
NO_PASSWORD = "no password given; type one, or pass one on standard input"
ROWS: list[Row] = [
    {"name": "sensors", "messages": 12, "durable": True, "policy": None},
    {"name": "a\x1b[2J\nb", "messages": 3000, "durable": False, "policy": "x"},
]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings file and the TRELLIS_ variables of this machine from the tests.

    Also set `http_proxy` to a port where nothing listens: commands must not use a proxy.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trellis.settings.loading.SEARCHED", (Path("broker.toml"),))
    for name in [name for name in os.environ if name.startswith("TRELLIS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "100")


class Answers(BaseHTTPRequestHandler):
    """An HTTP server in place of a broker, with a fixed status and body for each path.

    Paths below /api/ need a login.
    """

    pages: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/readyz": (200, b"ready\n"),
        "/draining/readyz": (503, b"draining\x1b[2J\n"),
        "/api/trellis/queues": (200, json.dumps(ROWS).encode()),
        "/api/trellis/sessions": (200, b"[]"),
        "/api/trellis/exchanges": (200, b'{"not": "a list"}'),
        "/api/trellis/bindings": (200, b"<html>\xff"),
        "/api/trellis/connections": (500, b""),
        "/api/trellis/policies": (404, b"no such path\n"),
    }
    users = ("ann:s3cret é", "guest:guest")

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, b""))
        known = ["Basic " + base64.b64encode(user.encode()).decode() for user in self.users]
        if self.path.startswith("/api/") and self.headers["Authorization"] not in known:
            status, body = 401, b""
        # The metrics port of the broker sends no text after the status.
        self.send_response(status, "" if body == b"no such path\n" else None)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a running server with fixed answers."""
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


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


# --- arguments ---


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    for command in (
        "serve",
        "version",
        "config",
        "check-config",
        "hash-password",
        "health",
        "list",
    ):
        assert f"\n    {command} " in out


def test_help_exits_with_0_and_has_no_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run(capsys, "serve", "--help")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\nThe listener for MQTT 3.1, 3.1.1 and 5, and limits of MQTT clients:\n" in out
    assert "  --amqp-port PORT " in out
    assert "[16 MiB]" in out
    assert "[14 days]" in out
    for option in OPTIONS.values():
        assert (f" {option.flag} " in out) != option.in_files_only


@pytest.mark.parametrize(
    ("command", "used"),
    [
        ("health", ["--metrics-enabled", "--metrics-host", "--metrics-port"]),
        ("cluster status", sorted([*LOG, "--cluster-silence", "--cluster-unsafe"])),
        (
            "cluster check",
            sorted([*LOG, "--cluster-lease", "--cluster-silence", "--cluster-unsafe"]),
        ),
        ("cluster seed", [*LOG, "--data-dir"]),
        ("cluster forget", LOG),
        ("store verify", ["--data-dir"]),
        ("list", ["--http-enabled", "--http-host", "--http-port", "--http-tls"]),
        ("users add", ["--http-enabled", "--http-host", "--http-port", "--http-tls"]),
        (
            "replay",
            [
                *("--amqp-host", "--amqp-port"),
                *("--http-enabled", "--http-host", "--http-port", "--http-tls"),
            ],
        ),
    ],
)
def test_help_of_a_command_shows_only_the_settings_that_it_uses(
    capsys: pytest.CaptureFixture[str], command: str, used: list[str]
) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    own = {"--user", "--password", "--password-file"}
    shown = re.findall(r"^  (--[a-z-]+) ", out, re.MULTILINE)
    flags = {option.flag for option in OPTIONS.values()}
    assert sorted(flag for flag in shown if flag in flags - own) == used


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("health --http-port 15672", "--metrics-enabled, --metrics-host, --metrics-port"),
        ("health --amqp-port=5672", "--metrics-enabled, --metrics-host, --metrics-port"),
        ("list queues --metrics-port 1", "--http-enabled, --http-host, --http-port, --http-tls"),
        ("queues delete q --data-dir x", "--http-enabled, --http-host, --http-port, --http-tls"),
    ],
)
def test_the_flag_of_a_setting_that_a_client_does_not_use_is_refused(
    capsys: pytest.CaptureFixture[str], line: str, used: str
) -> None:
    flag = re.findall(r"--[a-z-]+", line)[0]
    command = re.split(r" queues --| q --| --", line)[0]
    assert error_of(capsys, *line.split()) == (
        f"{flag} has no effect in `trellis {command}`, which uses only these settings: {used} (see "
        f"`trellis {command} --help`)"
    )


@pytest.mark.parametrize("command", SETTINGS_COMMANDS)
def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    effective = ["--effective"] if command == "config" else []
    error = error_of(
        capsys, *command.split(), *effective, "--limits-queues=-1", "--log-level", "info"
    )
    assert error == '--limits-queues: limits.queues: must be a whole number at least 0, got "-1"'


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("serv", 'unknown command "serv"; the nearest is serve (see `trellis --help`)'),
        ("users ad", 'unknown action "ad"; the nearest is add (see `trellis users --help`)'),
        (
            "serve --amqp-prot 1",
            "unknown argument --amqp-prot; the nearest flag is --amqp-port (see `trellis serve --",
        ),
        (
            "check-config --amqp-por=1",
            "unknown argument --amqp-por; the nearest flag is --amqp-port",
        ),
        (
            "check-config file.toml",
            "unknown argument file.toml (see `trellis check-config --help`)",
        ),
        ("serve --config", "argument --config: expected one argument"),
        ("list", "the following arguments are required: KIND"),
        ("list queuez", 'argument KIND: unknown value "queuez"; the nearest is queues, and there'),
        ("list queues --columms a", "unknown argument --columms; the nearest flag is --columns"),
        ("bindings declare a b --key c", "unknown argument --key; give KEY without a flag"),
        ("move a b", "unknown argument b; the target is --to QUEUE or --exchange NAME"),
        # The order of RabbitMQ's tools: the word too many is the virtual host, not the last word.
        (
            "permissions set ann / .* .* .*",
            "unknown argument /; to name a virtual host, use --vhost / (see `trellis permissions s",
        ),
        (
            "permissions set / ann .* .* .*",
            "unknown argument /; to name a virtual host, use --vhost / (see `trellis permissions s",
        ),
        (
            "permissions set ann plant .* .* .*",
            "unknown argument plant; to name a virtual host, use --vhost plant (see",
        ),
        (
            "permissions set ann .* .* .* plant",
            "unknown argument plant; to name a virtual host, use --vhost NAME (see",
        ),
        (
            "permissions set ann .* .* .* plant more",
            "unknown argument plant; to name a virtual host, use --vhost NAME (see",
        ),
        ("permissions clear ann /", "unknown argument /; to name a virtual host, use --vhost / (s"),
        (
            "permissions clear ann plant",
            "unknown argument plant; to name a virtual host, use --vhost plant (see",
        ),
        ("publish / sensors a x", "unknown argument /; to name a virtual host, use --vhost / (see"),
        ("queues delete a b=c", "unknown argument b=c; to name a virtual host, use --vhost NAME"),
        ("why topic T --login ann", "unknown argument --login; the nearest flag is --user (see"),
    ],
)
def test_error_in_arguments_is_one_line(
    capsys: pytest.CaptureFixture[str], line: str, error: str
) -> None:
    assert error_of(capsys, *line.split()).startswith(error)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "route",
            "The exit code is 1 if no broker answers, or if an expectation of --expect is not",
        ),
        ("why", "The exit code is 0 if no problem was found. The exit code is 1 if a problem was"),
        ("why queue", "The exit code is 1 if a problem was found, or if the broker cannot answer."),
        (
            "why client",
            "The exit code is 1 if a problem was found, or if the broker cannot answer.",
        ),
        ("why topic", "The exit code is 1 if a problem was found, or if the broker cannot answer."),
    ],
)
def test_the_help_of_a_command_that_checks_says_when_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], command: str, sentence: str
) -> None:
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "") and sentence in " ".join(out.split())


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ("{max-length: 9}", '"{max-length: 9}" is not JSON at character 2, "max-length: 9}"'),
        ("{'max-length': 9}", "is not JSON at character 2, "),
        ('{"max-length": 9,}', "is not JSON at character 1"),
        ('{"max-length": 9', '"{"max-length": 9" is not JSON at its end'),
        ("", '"" is not JSON at its end'),
        ("9", '"9" is JSON, but not an object'),
        ("[]", '"[]" is JSON, but not an object'),
        ("[" * 100_000, "too many levels"),
        ("1" * 10_000, "has a number with too many digits"),
        ('{"x": \x1b[2J}', "is not JSON at character 7, "),
    ],
)
def test_a_definition_of_a_policy_that_is_no_object_names_policy_fault_and_example(
    capsys: pytest.CaptureFixture[str], definition: str, fault: str
) -> None:
    error = error_of(capsys, "policies", "set", "limits", "^q", definition)
    assert error.startswith("policy 'limits': the definition ") and fault in error
    assert error.endswith(""", as in '{"max-length": 1000}'""") and len(error) < 400


def test_an_empty_argument_too_many_is_shown_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, "permissions", "clear", "ann", "")
    assert error.startswith('unknown argument ""; to name a virtual host, use --vhost NAME (see ')


def test_rules_that_only_a_broker_must_obey_are_not_checked_by_a_client(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port())
    # Two listeners of a broker cannot have the same port, and a listener with TLS needs a file.
    monkeypatch.setenv("TRELLIS_AMQP_PORT", port)
    flags = ("--http-tls", "true", "--http-port", port)
    error = error_of(capsys, "list", "queues", *flags, code=1)
    assert error.startswith(f"no answer from https://127.0.0.1:{port} (Connection refused)")
    assert "both have port" in error_of(capsys, "check-config", "--http-port", port)
    error = error_of(capsys, "check-config", "--http-tls", "true", "--amqp-port", "1")
    assert error.startswith("--http-tls: http.tls: http.tls needs a certificate")


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
    assert error_of(capsys, "config", "--json").startswith("--json prints the settings in force")


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
        "the two passwords differ; type the same one twice"
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


def test_the_nearest_flag_is_one_that_the_command_accepts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, nearest in (
        (["health", "--port", "1"], "--metrics-port"),
        (["list", "queues", "--port", "1"], "--http-port"),
        (["list", "queues", "--ws-prt", "1"], "--sort"),
        (["serve", "--ws-prt", "1"], "--ws-port"),
    ):
        error = error_of(capsys, *words)
        assert f"; the nearest flag is {nearest} (" in error, error


def test_the_help_explains_the_words_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "serve", "--help")
    assert code == 0
    text = " ".join(out.split())
    for explanation in (
        "the silence: the time in seconds without a record of the active node",
        "the lease: the time in seconds for which the active node may serve clients",
        "it appends a mark, a record at which a node can begin to read the log",
    ):
        assert explanation in text


# --- health ---


def test_ready_broker_is_healthy(capsys: pytest.CaptureFixture[str], port: int) -> None:
    ready = (0, f"ready: http://127.0.0.1:{port}/readyz\n", "")
    assert run(capsys, "health", "--metrics-port", str(port)) == ready
    assert (
        run(capsys, "health", "--metrics-port", str(port), "--metrics-host", "0.0.0.0,::") == ready
    )
    assert run(capsys, "health", "--url", f"http://127.0.0.1:{port}/") == ready


def test_broker_that_is_not_ready_is_an_error(
    capsys: pytest.CaptureFixture[str], port: int
) -> None:
    url = f"http://127.0.0.1:{port}/draining"
    error = error_of(capsys, "health", "--url", url, code=1)
    assert error == f"not ready: {url}/readyz answered 503: draining\\x1b[2J"


def test_a_port_without_the_expected_paths_is_named_with_the_right_port(
    capsys: pytest.CaptureFixture[str], port: int
) -> None:
    url = f"http://127.0.0.1:{port}"
    assert error_of(capsys, "health", "--url", f"{url}/x", code=1) == (
        f"{url}/x/readyz answered 404, so no health check is there; health checks are on the "
        "metrics port (metrics.port, by default 15692); give its URL with --url"
    )
    hint = "the HTTP API is on the http port (http.port, by default 15672); give its URL with --url"
    for path, status in (("users", "404 Not Found"), ("policies", "404: no such path")):
        error = error_of(capsys, "list", path, "--url", url, code=1)
        assert error == f"{url}/api/trellis/{path} answered {status}; {hint}"


def test_missing_broker_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        free = server.server_port
    for command in (["health", "--metrics-port"], ["list", "queues", "--http-port"]):
        error = error_of(capsys, *command, str(free), code=1)
        assert error.startswith(
            f"no answer from http://127.0.0.1:{free} (Connection refused); start the broker"
        )


def test_url_of_an_http_listener_with_tls_has_the_scheme_https() -> None:
    for tls, scheme in ((False, "http"), (True, "https")):
        settings = Settings(http=Http(host="0.0.0.0", port=15671, tls=tls))
        assert api_url(None, settings) == f"{scheme}://127.0.0.1:15671"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (
            "--metrics-port 0",
            "metrics.port is 0 in the settings, a free port chosen at the start; give --url",
        ),
        ("--metrics-enabled false", "metrics.enabled is false in the settings; give --url"),
        (
            "--url file:///etc/hostname",
            '--url: must be a URL such as http://127.0.0.1:15692, got "file:///etc/hostname"',
        ),
        ("--url http://[::1", "--url: must be a URL such as"),
        ("--url http://a:b", "--url: must be a URL such as"),
        ("--url http://a/é", "--url: must be a URL such as"),
    ],
)
def test_unusable_url_is_an_error(
    capsys: pytest.CaptureFixture[str], flags: str, error: str
) -> None:
    assert error_of(capsys, "health", *flags.split()).startswith(error)


def test_ipv6_address_is_put_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, "health", "--metrics-host", "::", "--metrics-port", "1", code=1)
    assert error.startswith("no answer from http://[::1]:1 (")


def test_invalid_host_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "health", "--url", "http://a..b", code=1).startswith(
        "no answer from http://a..b ("
    )


# --- list ---


def test_objects_are_listed_as_a_table(capsys: pytest.CaptureFixture[str], port: int) -> None:
    _, out, _ = run(capsys, "list", "queues", "--http-port", str(port))
    assert out.splitlines() == [
        "name         messages  durable  policy",
        "sensors            12  yes",
        r"a\x1b[2J\nb      3000  no       x",
    ]


def test_columns_are_chosen_and_ordered(capsys: pytest.CaptureFixture[str], port: int) -> None:
    words = ("list", "queues", "--http-port", str(port))
    _, out, _ = run(capsys, *words, "--columns", "messages, name")
    assert out.splitlines()[:2] == ["messages  name", "      12  sensors"]
    _, out, _ = run(capsys, *words, "--columns", "messages", "--json")
    assert json.loads(out) == [{"messages": 12}, {"messages": 3000}]
    error = error_of(capsys, *words, "--columns", "mesages")
    assert error == "queues have no column mesages; the nearest is messages"


def test_json_output_equals_the_answer_of_the_broker(
    capsys: pytest.CaptureFixture[str], port: int
) -> None:
    _, out, _ = run(capsys, "list", "queues", "--json", "--url", f"http://127.0.0.1:{port}")
    assert json.loads(out) == ROWS


def test_the_url_of_the_broker_is_that_of_the_flag_then_of_the_variable(
    capsys: pytest.CaptureFixture[str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, words = f"http://127.0.0.1:{port}", ("list", "queues", "--json")
    monkeypatch.setenv("TRELLIS_URL", url)
    assert json.loads(run(capsys, *words)[1]) == ROWS
    assert error_of(capsys, *words, "--url", "tcp://a").startswith("--url: must be a URL such as")
    monkeypatch.setenv("TRELLIS_URL", "tcp://a")
    assert error_of(capsys, *words).startswith("TRELLIS_URL: must be a URL such as")
    assert json.loads(run(capsys, *words, "--url", url)[1]) == ROWS


def test_empty_list_has_a_text(capsys: pytest.CaptureFixture[str], port: int) -> None:
    words = ("list", "sessions", "--http-port", str(port))
    assert run(capsys, *words) == (0, "no sessions\n", "")
    assert json.loads(run(capsys, *words, "--json")[1]) == []


def test_login_of_a_user(
    capsys: pytest.CaptureFixture[str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("list", "sessions", "--http-port", str(port))
    Path("secret").write_text("s3cret é\n", encoding="utf-8")
    assert run(capsys, *words, "--user", "ann", "--password", "s3cret é")[0] == 0
    assert run(capsys, *words, "--user", "ann", "--password-file", "secret")[0] == 0
    assert error_of(capsys, *words, "--user", "ann").startswith(
        "no password for user ann; give --password"
    )
    assert error_of(capsys, *words, "--user", "ann", "--password-file", "gone").startswith(
        "--password-file: gone cannot be"
    )
    error = error_of(capsys, *words, "--user", "ann", "--password", "wrong", code=1)
    assert error.startswith(
        f"http://127.0.0.1:{port} refused user ann (Unauthorized); give --user and --password"
    )
    monkeypatch.setenv("TRELLIS_USER", "ann")
    monkeypatch.setenv("TRELLIS_PASSWORD_FILE", "secret")
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words, "--user", "guest", "--password", "guest")[0] == 0
    assert error_of(capsys, *words, "--password", "wrong", code=1).startswith(
        f"http://127.0.0.1:{port} refused user ann"
    )


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (
            "exchanges",
            (
                "/api/trellis/exchanges did not answer with the expected JSON list of flat "
                "objects; check that a Trellis broker listens there, or give another --url"
            ),
        ),
        (
            "bindings",
            (
                "/api/trellis/bindings did not answer with the expected JSON list of flat "
                "objects; check that a Trellis broker listens there, or give another --url"
            ),
        ),
        ("connections", "/api/trellis/connections answered 500 Internal Server Error"),
    ],
)
def test_unexpected_answer_is_an_error(
    capsys: pytest.CaptureFixture[str], port: int, kind: str, error: str
) -> None:
    assert (
        error_of(capsys, "list", kind, "--http-port", str(port), code=1)
        == f"http://127.0.0.1:{port}{error}"
    )


def test_rows_need_not_have_the_same_keys() -> None:
    rows: list[Row] = [{"a": 1}, {"b": 2.5, "a": None}]
    assert columns_of(rows) == ["a", "b"]
    assert table(rows, ["a", "b"]) == "a    b\n1\n   2.5"


def test_command_error_is_one_line() -> None:
    assert str(CommandError("a\nb")) == "a\\nb"


def test_each_command_is_in_the_module_that_the_table_names() -> None:
    """The table COMMANDS names the module of each command, so that only this module is imported.

    If an entry is missing, its command is unknown. If an entry is wrong, too much is imported.
    """
    for name in dict.fromkeys(COMMANDS.values()):
        root = Parser(prog="trellis")
        commands = root.add_subparsers(dest="command")
        import_module(f"trellis.cli.{name}").add(commands)
        assert list(commands.choices) == [
            command for command, module in COMMANDS.items() if module == name
        ]
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert set(COMMANDS.values()) <= modules


#: A program whose arguments are names of modules with commands. For each module, it prints the name
#: and the modules of the core that the module's commands import. It makes the parser of each
#: command in a fork of itself, which has imported only the root of all commands.
_IMPORTS = """
import os, sys
from trellis.cli import COMMANDS, parser
for name in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    parser(next(command for command, module in COMMANDS.items() if module == name))
    core = {"broker.broker", "broker.routing.plan", "broker.queues.queue"}
    unneeded = core | {"trellis.cli.bench"} - {f"trellis.cli.{name}"}
    print(name, *sorted(unneeded & set(sys.modules)), flush=True)
    os._exit(0)
"""
#: The work of `doctor` needs the core. `completion` and `man` need all commands.
_WITH_CORE = {"doctor", "completion", "manual"}


def test_a_command_does_not_import_the_broker() -> None:
    """Each command starts fast: it imports no part of the broker's core and no load tool."""
    names = sorted(set(COMMANDS.values()) - _WITH_CORE)
    command = [sys.executable, "-c", _IMPORTS, *names]
    assert subprocess.check_output(command, text=True).split("\n") == [*names, ""]
