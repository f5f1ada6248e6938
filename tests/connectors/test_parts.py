"""Tests of the parts of `trellis connect`: settings, signatures, addresses, progress, templates."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import socket
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="the extra [connect] is not installed")

from standardwebhooks import Webhook, WebhookVerificationError

from trellis.cli import main
from trellis.connect import backoff, settings
from trellis.connect.addresses import PrivateAddress, is_public, public_socket
from trellis.connect.http_target import RETRY_AFTER_MAX, seconds_of
from trellis.connect.key_template import MESSAGE_FIELDS, KeyTemplate, TemplateError
from trellis.connect.progress import Progress
from trellis.connect.signing import safe_identifier, signed_headers

SECRET: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
WEBHOOK: Final = f"""
[[webhook]]
name = "orders"
queue = "orders"
url = "https://example.com/hook"
secrets = ["{SECRET}"]
dead_letter = "orders.failed"
"""
TO_KAFKA: Final = """
[[to_kafka]]
name = "events"
stream = "events"
servers = "127.0.0.1:9092"
topic = "events"
dead_letter = "events.failed"
"""
FROM_KAFKA: Final = """
[[from_kafka]]
name = "back"
servers = "127.0.0.1:9092"
topics = ["events"]
group = "trellis"
"""


# -- signatures


@hypothesis.settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200).map(lambda data: data.hex().encode()), st.text(max_size=300))
def test_the_library_of_standard_webhooks_accepts_the_signature(body: bytes, name: str) -> None:
    keys = [b"new" * 10, b"k" * 32]
    headers = signed_headers(safe_identifier(name), int(time.time()), body, keys)
    Webhook(SECRET).verify(body, headers, json_parse=False)
    for change in ({"webhook-id": "other"}, {"webhook-timestamp": str(int(time.time()) - 9)}):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(body, headers | change, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body + b"x", headers, json_parse=False)


@given(st.text(max_size=300), st.text(max_size=300))
def test_identifiers_fit_into_a_header_and_stay_apart(one: str, other: str) -> None:
    identifier = safe_identifier(one)
    assert re.fullmatch("[A-Za-z0-9_-]+", identifier)
    assert (identifier == safe_identifier(other)) == (one == other)


# -- addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "::7f00:1"),
        "2001:0:7f00:1::1",
    ],
)
def test_a_private_address_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost"])
def test_no_socket_is_made_for_a_private_address(host: str) -> None:
    for place in socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM):
        with pytest.raises(PrivateAddress, match="not a public address: set allow_private = true"):
            public_socket(place)


def test_a_socket_is_made_for_a_public_address() -> None:
    [place] = socket.getaddrinfo("1.1.1.1", 80, type=socket.SOCK_STREAM)
    public_socket(place).close()


# -- progress, pauses, templates


@hypothesis.settings(max_examples=25)
@given(st.data(), st.integers(1, 20))
def test_the_prefix_ends_before_the_first_open_message(data: st.DataObject, count: int) -> None:
    progress = Progress()
    finished: set[int] = set()
    begun = 0
    while len(finished) < count:
        left = [number for number in range(begun) if number not in finished]
        if begun < count and (not left or data.draw(st.booleans())):
            progress.begin(begun * 3)
            begun += 1
            continue
        number = data.draw(st.sampled_from(left))
        progress.finish(number * 3)
        finished.add(number)
        prefix = next(number for number in range(count + 1) if number not in finished)
        assert progress.done == (None if prefix == 0 else (prefix - 1) * 3)
        assert len(progress) == begun - prefix
    assert len(progress) == 0


@given(st.integers(1, 10_000), st.floats(0.01, 100), st.floats(0.01, 10_000))
def test_a_pause_is_doubled_up_to_the_limit(attempt: int, first: float, most: float) -> None:
    seconds = backoff.pause(attempt, first, most)
    doubled = min(first * 2.0 ** min(attempt - 1, 60), most)
    assert doubled * 0.8 <= seconds * 1.0001
    assert seconds <= most


def test_a_template_makes_a_key() -> None:
    fields = {"routing_key": "a.b", "topic": "a/b"}
    template = KeyTemplate("{word2}-{topic}/{header.device}{header.none}{word9}", MESSAGE_FIELDS)
    assert template.fill(fields, "a.b", {"device": b"7"}) == "b-a/b/7"
    for wrong in ("{nothing}", "{word0}", "{header.}", "a{", "}", "{a}{", "{{x}}"):
        with pytest.raises(TemplateError):
            KeyTemplate(wrong, MESSAGE_FIELDS)


def test_retry_after_is_a_number_or_a_date() -> None:
    now = 1_000_000_000.0
    assert seconds_of("120", now) == 120
    assert seconds_of(format_datetime(datetime.fromtimestamp(now + 60, UTC)), now) == 60
    assert seconds_of("Wed, 21 Oct 1998 07:28:00 GMT", now) == 0
    assert seconds_of("99999999999", now) == RETRY_AFTER_MAX
    for wrong in ("", "soon", "-1", "1e999", "nan"):
        assert seconds_of(wrong, now) is None


# -- settings


def test_a_whole_file_is_read() -> None:
    parsed = settings.parse(WEBHOOK + TO_KAFKA + FROM_KAFKA, "connect.toml")
    assert parsed.webhook[0].prefetch == 8
    assert parsed.to_kafka[0].key == "{routing_key}"
    assert settings.keys_of(parsed.webhook[0]) == [b"k" * 32]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file defines no link"),
        ("x = [", "is not valid TOML"),
        (
            WEBHOOK + "tiemout = 3",
            "webhook[0]: unknown setting 'tiemout'; the nearest is 'timeout'",
        ),
        ("[brokr]", "unknown setting 'brokr'; the nearest is 'broker'"),
        ('[[webhook]]\nname = "a"', "the setting 'dead_letter' is missing"),
        (WEBHOOK + "attempts = 0", "webhook[0].attempts: Expected `int` >= 1"),
        (WEBHOOK.replace("https://example.com", "ftp://x"), "must be http://HOST/..."),
        (WEBHOOK.replace("example.com", "a:b@example.com"), "must not contain a login"),
        (WEBHOOK.replace("example.com", "192.168.1.1"), "192.168.1.1 is not a public address"),
        (WEBHOOK.replace(SECRET, "x"), "24 to 64 bytes in Base64"),
        (WEBHOOK.replace(f'["{SECRET}"]', "[]"), "set a secret to sign the requests with"),
        (WEBHOOK + 'stream = "s"', "set exactly one of `queue` and `stream`"),
        (WEBHOOK.replace("orders.failed", "orders"), "must be another queue"),
        (WEBHOOK + WEBHOOK, "two links have the name 'orders'"),
        (TO_KAFKA + 'key = "{device}"', "unknown field '{device}'"),
        (TO_KAFKA + "options = { acks = 1 }", "the link sets acks itself"),
        (FROM_KAFKA + 'routing_key = "{topic}"', "unknown field '{topic}'"),
        ('[broker]\nurl = "http://x"\n' + WEBHOOK, "broker.url: must be amqp://"),
        (WEBHOOK + 'secret_files = ["/nowhere"]', "/nowhere"),
    ],
)
def test_a_mistake_is_explained_in_one_line(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "connect.toml"
    file.write_text(text)
    assert main(["connect", str(file), "--check"]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert str(file) in error or "nowhere" in problem
    assert error.count("\n") == 1


def test_commands_check_a_file_and_make_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "connect.toml"
    file.write_text(WEBHOOK + TO_KAFKA + FROM_KAFKA)
    assert main(["connect", str(file), "--check"]) == 0
    assert capsys.readouterr().out == "webhook orders\nto_kafka events\nfrom_kafka back\n"
    assert main(["connect", str(file), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"kind": "webhook", "name": "orders"},
        {"kind": "to_kafka", "name": "events"},
        {"kind": "from_kafka", "name": "back"},
    ]
    assert main(["connect", str(file), "--json"]) == 2
    assert "--json needs --check" in capsys.readouterr().err
    assert main(["connect", "--new-secret"]) == 0
    assert Webhook(capsys.readouterr().out.strip())
    assert main(["connect"]) == 2
    assert main(["connect", str(tmp_path / "none.toml")]) == 2
    assert "`trellis connect` needs a settings file" in (error := capsys.readouterr().err)
    assert "cannot be read" in error


def test_the_password_of_the_broker_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/word\n")
    section = settings.BrokerSection(
        url="amqp://ann@host:5672/v", password_file=str(tmp_path / "password")
    )
    assert settings.broker_url(section) == "amqp://ann:p%40ss%2Fword@host:5672/v"
