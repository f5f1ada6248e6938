"""Tests of the HTTP API against its OpenAPI description, from which schemathesis makes requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker import BrokerProcess

#: Checks of schemathesis: an answer fits the description in status, content type and shape, and its
#: status is not a server error.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.mark.long
@pytest.mark.parametrize("examples", [1, 40])
def test_requests_made_from_the_description_are_answered_as_described(
    examples: int, tmp_path: Path
) -> None:
    broker = BrokerProcess()
    try:
        host, port = broker.addresses["http"]
        completed = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "run",
                f"http://{host}:{port}/api/openapi.json",
                "--auth=guest:guest",
                f"--checks={','.join(CHECKS)}",
                f"--max-examples={examples}",
                "--seed=1",
                "--phases=fuzzing",
                "--no-color",
                # A failed health check has status 503, which looks like an error of the server.
                "--exclude-path-regex=/health|/aliveness",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert completed.returncode == 0, completed.stdout[-5_000:] + completed.stderr[-1_000:]
        assert "passed" in completed.stdout
        assert "http_call_failed" not in broker.log
        broker.stop()
    finally:
        broker.kill()
