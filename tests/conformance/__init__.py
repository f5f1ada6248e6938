"""Tests with programs of other projects that `make test-long` installs.

asyncapi.js      AsyncAPI's parser, which validates documents
Node-RED         a flow with MQTT nodes (test_node_red.py)
Telegraf         plugins for MQTT and AMQP, built by Go (test_telegraf.py)
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.foreign import require


def validated(*documents: Path) -> str:
    """Validate AsyncAPI documents with the official parser; return its output.

    Without the parser, skip the test.
    """
    script = Path(__file__).parent / "asyncapi.js"
    done = subprocess.run(
        [require("conformance"), str(script), *map(str, documents)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
