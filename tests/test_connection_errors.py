"""The errors of commands whose request gets no HTTP answer: the reason, and what to do."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.authority import Authority
from trellis.cli import main
from trellis.cli.connection_errors import connection_error

HTTP_PORT: Final = "the HTTP API is on the http port (http.port, by default 15672)"
OTHER: Final = "another protocol answers at this port"


@contextmanager
def serving(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve one connection: read a request, send `answer` and close; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.settimeout(10)
            try:
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                connection.recv(65_536)
                connection.sendall(answer)
            except OSError:
                pass  # The command refuses the certificate, or speaks no TLS.
            finally:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main([*words])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "") and err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("scheme", "answer", "reason"),
    [
        ("http", b"AMQP\0\0\x09\x01", f" does not speak HTTP: {OTHER}; {HTTP_PORT}"),
        (
            "http",
            b"",
            f" closed the connection without an HTTP answer: {OTHER} (for TLS, give http",
        ),
        ("http", b"\x15\x03\x03\0\x02\x02\x28", " answers with TLS: give https://127.0.0.1:"),
        ("https", b"AMQP\0\0\x09\x01", " answers without TLS, or refuses the TLS connection ("),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "for a port without TLS, give http://127.0"),
        ("https", b"", HTTP_PORT),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[", " before the end of its answer"),
    ],
)
def test_a_server_that_speaks_another_protocol_is_named_and_not_called_absent(
    capsys: pytest.CaptureFixture[str], scheme: str, answer: bytes, reason: str
) -> None:
    with serving(answer) as port:
        error = error_of(capsys, "list", "queues", "--url", f"{scheme}://127.0.0.1:{port}")
    assert error.startswith(f"trellis: {scheme}://127.0.0.1:{port} ") and reason in error
    assert "start the broker" not in error and "no answer" not in error


def test_the_health_check_names_its_own_port(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(b"AMQP\0\0\x09\x01") as port:
        error = error_of(capsys, "health", "--url", f"http://127.0.0.1:{port}")
    assert "health checks are on the metrics port (metrics.port, by default 15692)" in error


def test_a_certificate_that_is_not_accepted_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path / "certificates").sign("localhost"))
    with serving(b"", context) as port:
        error = error_of(capsys, "list", "queues", "--url", f"https://localhost:{port}")
    assert f"trellis: the certificate of https://localhost:{port} is not accepted (" in error
    assert "SSL_CERT_FILE" in error and "start the broker" not in error


def test_only_a_refused_connection_or_silence_suggests_to_start_the_broker() -> None:
    for error, starts in (
        (ConnectionRefusedError("refused"), True),
        (TimeoutError("timed out"), True),
        (socket.gaierror(-2, "Name or service not known"), False),
        (OSError(101, "Network is unreachable"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
    ):
        text = connection_error(error, "http", "here:1", "http")
        assert ("start the broker" in text) == starts, text
