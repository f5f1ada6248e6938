"""Tests of the pipeline's credentials: their sources, and that no other server receives them."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from pyspark_trellis.credentials import credentials_of
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.remote import Remote, RemoteBroker
from pyspark_trellis.rows import stream_of
from trellis.cli import main

PLACE = "http://127.0.0.1:15672"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "PASSWORD", "PASSWORD_FILE"):
        monkeypatch.delenv(f"TRELLIS_{name}", raising=False)


def of(place: str = PLACE, **options: str) -> tuple[str, str]:
    return credentials_of(urlsplit(place), options)


def test_the_first_source_that_has_a_password_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_text("in one\nsecond line\n")
    (tmp_path / "two").write_text("in two")
    assert of() == ("guest", "guest")
    monkeypatch.setenv("TRELLIS_PASSWORD_FILE", str(tmp_path / "two"))
    monkeypatch.setenv("TRELLIS_USER", "env")
    assert of() == ("env", "in two")
    monkeypatch.setenv("TRELLIS_PASSWORD", "in env")
    assert of() == ("env", "in env")
    assert of("http://a%40b@127.0.0.1:15672") == ("a@b", "in env")
    assert of(passwordfile=str(tmp_path / "one")) == ("env", "in one")
    assert of(passwordfile=str(tmp_path / "one"), password="given", user="ann") == ("ann", "given")
    assert of(tokenfile=str(tmp_path / "two"), password="given") == ("env", "in two")
    assert of(tokenfile=str(tmp_path / "two"), token="a.b.c") == ("env", "a.b.c")


@pytest.mark.parametrize("place", ["http://ann:secret@127.0.0.1:15672", "http://:secret@host"])
def test_a_url_with_a_password_is_refused_without_showing_it(place: str) -> None:
    for attempt in (
        lambda: of(place),
        lambda: RemoteBroker.of(place),
        lambda: Remote.of(place, {"stream": "s"}),
        lambda: stream_of({"path": place, "stream": "s"}),
    ):
        with pytest.raises(PipelineError, match="contains a password") as refused:
            attempt()
        assert "secret" not in str(refused.value) and "passwordFile" in str(refused.value)


def test_a_command_refuses_a_url_with_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--journal", "http://ann:secret@127.0.0.1:1", "--stream", "journal"]
    assert main(["pipeline", "audit", *words]) != 0
    error = capsys.readouterr().err
    assert "contains a password" in error and "secret" not in error and error.count("\n") == 1


def test_a_missing_password_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no password for user 'ann' .* TRELLIS_PASSWORD_FILE"):
        of(user="ann")
    with pytest.raises(PipelineError, match=r"cannot read the password in .*No such file"):
        of(passwordfile=str(tmp_path / "none"))


# -- on the network


class _Server(ThreadingHTTPServer):
    """An HTTP server that keeps the paths and credentials of its requests."""

    def __init__(self, authority: trustme.CA | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str]] = []
        self.location = ""
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(context)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.requests.append((self.path, self.headers.get("Authorization", "")))
        self.send_response(302 if server.location else 200)
        if server.location:
            self.send_header("Location", server.location)
        self.end_headers()
        self.wfile.write(json.dumps({"from": self.path}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write no log."""


@contextmanager
def serving(authority: trustme.CA | None = None) -> Iterator[_Server]:
    server = _Server(authority)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_proxy_gets_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as broker, serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        remote = RemoteBroker.of(broker.url, {"user": "ann", "password": "secret"})
        assert remote.document("/api/x") == {"from": "/api/x"}
        authorization = "Basic " + base64.b64encode(b"ann:secret").decode()
        assert broker.requests == [("/api/x", authorization)]
        assert proxy.requests == []


def test_no_other_server_gets_the_password_by_a_redirection() -> None:
    with serving() as broker, serving() as other:
        broker.location = f"{other.url}/api/x"
        remote = RemoteBroker.of(broker.url, {"user": "ann", "password": "secret"})
        with pytest.raises(PipelineError, match="answered a request of user 'ann' with status 302"):
            remote.fetch("/api/x")
        assert other.requests == []


def test_a_token_is_sent_over_tls_to_the_server_of_the_authority_and_to_no_other(
    tmp_path: Path,
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    options = {"token": "a.b.c", "cafile": str(tmp_path / "ca.pem")}
    with serving(authority) as broker, serving(other) as imposter:
        place = f"https://127.0.0.1:{broker.server_port}"
        assert RemoteBroker.of(place, options).document("/api/x") == {"from": "/api/x"}
        assert broker.requests == [("/api/x", "Bearer a.b.c")]
        place = f"https://127.0.0.1:{imposter.server_port}"
        with pytest.raises(PipelineError, match=r"CERTIFICATE_VERIFY_FAILED"):
            RemoteBroker.of(place, options).fetch("/api/x")
        assert imposter.requests == []
    with pytest.raises(PipelineError, match=r"caFile: cannot read certificates in .*No such file"):
        RemoteBroker.of(place, {"token": "a", "cafile": str(tmp_path / "none")}).fetch("/api/x")
