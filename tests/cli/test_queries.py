"""Tests of the commands `health` and `list`: their output, also if no broker answers."""

import json
from http.server import HTTPServer
from pathlib import Path

import pytest

from tests.cli.command_line import error_of, run
from tests.cli.fixed_answers import ROWS, Answers
from trellis.cli.api_client import api_url
from trellis.cli.table import Row, columns_of, table
from trellis.settings import Http, Settings

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
        f"{url}/x/readyz answered 404: this port serves no health checks; health checks are on the "
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
            (
                "the broker's URL is unknown, because metrics.port is 0 in the settings, and the "
                "broker has chosen a free port; give --url"
            ),
        ),
        (
            "--metrics-enabled false",
            (
                "the broker's URL is unknown, because metrics.enabled is false in the settings; "
                "give --url"
            ),
        ),
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
    assert error == "`trellis list queues` has no column mesages; the nearest is messages"


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
    for variable, value in (("PASSWORD", "s3cret é"), ("PASSWORD_FILE", "secret")):
        monkeypatch.setenv(f"TRELLIS_{variable}", value)
        assert run(capsys, *words, "--user", "ann")[0] == 0
        assert run(capsys, *words, "--user", "guest", "--password", "guest")[0] == 0
        monkeypatch.delenv(f"TRELLIS_{variable}")
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
    monkeypatch.delenv("TRELLIS_PASSWORD_FILE")
    monkeypatch.setenv("TRELLIS_USER", "guest")
    assert run(capsys, *words)[0] == 0
    monkeypatch.setenv("TRELLIS_PASSWORD", "guest")
    assert run(capsys, *words)[0] == 0
    monkeypatch.setenv("TRELLIS_USER", "ann")
    monkeypatch.delenv("TRELLIS_PASSWORD")
    monkeypatch.setenv("TRELLIS_PASSWORD_FILE", "secret")
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
        (
            "connections",
            (
                "/api/trellis/connections answered 500 Internal Server Error; check that a "
                "Trellis broker listens there, and read its log"
            ),
        ),
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
