"""The commands of docs/opentelemetry.md, run with the ports of the test."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Final

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.telemetry.collector import Receiver
from tests.telemetry.running import PATIENCE, ROOT, run_example

PAGE: Final = (ROOT / "docs" / "opentelemetry.md").read_text()
#: The collector of the page's commands.
ENDPOINT: Final = "http://localhost:4318"


def line(beginning: str) -> str:
    """Return the only indented line of the page that begins with this text."""
    (only_line,) = re.findall(rf"^    ({re.escape(beginning)}.*)$", PAGE, re.MULTILINE)
    return str(only_line)


def test_the_commands_of_the_page(receiver: Receiver) -> None:
    """Serve with the page's flags, run the page's program, and find its trace in the metrics."""
    serve = line("trellis serve ").replace(ENDPOINT, receiver.url)
    assert receiver.url in serve
    broker = BrokerProcess(*shlex.split(serve)[2:])
    try:
        example = f"OTEL_EXPORTER_OTLP_ENDPOINT={ENDPOINT} .run/bin/python examples/tracing.py"
        assert line("OTEL_") == example
        assert line("order: ") == "order: 1 lamp"
        trace_id = run_example(broker, receiver.url)
        names = [span.name for span in receiver.wait(len(spans_of_page()))]
        assert sorted(names) == sorted(spans_of_page())
        assert exemplars(broker) == {trace_id}
        broker.stop()
    finally:
        broker.kill()


def spans_of_page() -> list[str]:
    """Return the names of the spans in the page's picture of the trace."""
    picture = re.search(r"^    send orders/new\n(?:    .+\n)+", PAGE, re.MULTILINE)
    assert picture is not None
    return [row.lstrip(" |+-") for row in picture[0].splitlines()]


def exemplars(broker: BrokerProcess) -> set[str]:
    """Run the page's command that shows exemplars; return the ids of their traces."""
    host, port = broker.addresses["metrics"]
    curl, _, grep = line("curl ").replace("localhost:15692", f"{host}:{port}").partition(" | ")
    page = subprocess.run(
        [require("curl"), *shlex.split(curl)[1:]], capture_output=True, check=True, timeout=PATIENCE
    )
    rows = subprocess.run(
        shlex.split(grep), input=page.stdout, capture_output=True, check=True
    ).stdout.decode()
    shown, _, _ = line("trellis_sampled_").partition("{")
    assert all(row.startswith(f"{shown}{{") for row in rows.splitlines())
    return set(re.findall(r'trace_id="([0-9a-f]{32})"', rows))
