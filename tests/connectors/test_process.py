"""Tests of docs/connectors.md and of the process of `trellis connect`: its HTTP pages, its end."""

from __future__ import annotations

import json
import re
import shlex
import signal
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import aio_pika
import pytest

pytest.importorskip("aiohttp", reason="the extra [connect] is not installed")

from prometheus_client.parser import text_string_to_metric_families
from standardwebhooks import Webhook

from tests import forks
from tests.broker import BrokerProcess, environment
from tests.connectors.conftest import Service, depth, until
from tests.connectors.test_webhooks import publish, queue_of
from trellis.connect import settings

PAGE: Final = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text()
EXAMPLES: Final = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)


def test_the_examples_of_the_page_are_valid() -> None:
    first, kafka = (settings.parse(text, "docs/connectors.md") for text in EXAMPLES)
    assert [link.name for link in first.webhook] == ["orders"]
    assert [link.name for link in kafka.to_kafka] == ["events"]
    assert [link.name for link in kafka.from_kafka] == ["commands"]


def test_the_page_names_the_defaults_and_the_metrics() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`(?:, `\w+`)* \| ([^|]*) \|", PAGE, re.M))
    example = tomllib.loads(EXAMPLES[0])["webhook"][0]
    section = settings.parse(EXAMPLES[0], "docs").webhook[0]
    assert rows["in_flight"] == str(section.in_flight)
    assert rows["timeout"] == f"{section.timeout:g} s"
    assert rows["batch"] == f"{section.batch}, {section.batch_wait:g} s"
    expected = f"{section.attempts}, {section.retry_first:g} s, {section.retry_max:g} s"
    assert rows["attempts"] == expected
    for name in settings.WebhookSection.__struct_fields__:
        assert f"`{name}`" in PAGE, name
    assert Webhook(example["secrets"][0])


async def test_the_command_of_the_page(
    keeping_broker: BrokerProcess,
    service: Service,
    channel: aio_pika.abc.AbstractChannel,
    unique: str,
    tmp_path: Path,
) -> None:
    [command] = re.findall(r"^    trellis (connect .+)$", PAGE, re.M)
    queue = await queue_of(channel, unique)
    host, port = keeping_broker.amqp
    text = EXAMPLES[0].replace("15693", "0").replace("127.0.0.1:5672", f"{host}:{port}")
    text = text.replace('queue = "orders"', f'queue = "{queue}"\nallow_private = true')
    text = text.replace("https://shop.example/hooks/orders", service.url)
    (tmp_path / "connect.toml").write_text(text)
    await publish(channel, queue, b"1", b"2")
    process = forks.start(
        "trellis",
        *shlex.split(command),
        *("--log-level", "error"),
        environment=environment(),
        directory=tmp_path,
    )
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("ready http=").strip()
    try:
        await until(lambda: len(service.bodies) == 2)
        secret = settings.parse(text, "test").webhook[0].secrets[0]
        for body, headers in zip(service.bodies, service.requests, strict=True):
            Webhook(secret).verify(body, headers)

        await until(lambda: sample(address, "trellis_connect_delivered_total") == 2)
        status, health = page(address)
        assert (status, health["healthy"]) == (200, True)
        [link] = health["links"]
        assert (link["name"], link["state"], link["delivered"]) == ("orders", "running", 2)
        assert sample(address, "trellis_connect_http_answers_total") == 2

        await channel.queue_delete(queue)
        await until(lambda: page(address)[0] == 503)
        assert page(address)[1]["links"][0]["state"] == "failing"
        await queue_of(channel, queue)
        await until(lambda: page(address)[0] == 200)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
        process.stdout.close()
    assert code == 0
    assert await depth(channel, queue) == 0


def page(address: str) -> tuple[int, Any]:
    """Return the status and the document of /health."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def sample(address: str, name: str) -> float:
    """Return the sum of the samples of a metric."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == name
    )
