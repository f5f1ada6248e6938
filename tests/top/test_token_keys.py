"""Tests of the keys of an OpenID provider: discovery, caching, rotation, faults and floods."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import threading
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import mqtt5
import msgspec
import pytest
import pytest_asyncio

from broker.access.identity import Authenticator, Credentials, Verdict
from tests.authority import Authority
from tests.top.clocks import JumpingLoop
from tests.top.conftest import Start
from tests.top.providers import Provider, answer_of, rsa_key, signed
from tests.top.running import Running
from tests.wire.mqtt5.client import read
from trellis.auth.tokens import fetching
from trellis.auth.tokens.authenticator import TokenAuthenticator, Tokens
from trellis.auth.tokens.fetching import FETCH_SECONDS, MAX_DOCUMENT, FetchError, KeyFetcher
from trellis.auth.tokens.keys import MAX_KEYS
from trellis.auth.tokens.provider import WAITING_MAX, ProviderKeys
from trellis.settings import SettingsError, load
from trellis.settings.tokens import Jwt

ONE, TWO = rsa_key("one"), rsa_key("two")
Run = Callable[..., Any]


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider(ONE)
    await provider.start()
    yield provider
    await provider.stop()


async def code_of(running: Running, token: str) -> int:
    """Return the reason code of the CONNACK for a client with a token as its password."""
    socket = await running.socket("mqtt")
    await socket.send(mqtt5.ConnectPacket("", username="x", password=token.encode()).write())
    (connack,) = read(await socket.read())
    socket.close()
    return int(connack.reason_code)


# -- a broker and its provider


async def test_keys_are_discovered_and_tokens_let_clients_in(
    start: Start, provider: Provider
) -> None:
    running = await start(jwt={"issuer": provider.issuer, "discovery": True})
    token = signed(ONE, iss=provider.issuer)
    await running.amqp("anybody", token)
    assert await code_of(running, token) == 0
    status, _ = await running.get("http", "/api/whoami", f"Authorization: Bearer {token}\r\n")
    assert status == 403  # The token has no tag for the HTTP API.
    administrator = signed(ONE, iss=provider.issuer, scope="tag:administrator")
    status, body = await running.get(
        "http", "/api/whoami", f"Authorization: Bearer {administrator}\r\n"
    )
    assert (status, json.loads(body)["name"]) == (200, "ann")
    assert await code_of(running, signed(ONE, iss="https://other.example")) == 0x86
    assert len(provider.paths) == 2
    page = await running.scrape()
    assert page.value("trellis_token_keys") == 1
    assert page.value("trellis_token_key_fetches_total", result="ok") == 1
    assert page.value("trellis_tokens_refused_total", part="iss") == 1
    assert page.value("trellis_tokens_accepted_total") == 4


async def test_a_new_key_is_fetched_when_a_token_names_it(start: Start, provider: Provider) -> None:
    running = await start(jwt={"jwks_url": f"{provider.issuer}/keys", "refetch": 1})
    assert await code_of(running, signed(ONE)) == 0
    provider.keys = (TWO,)
    async with asyncio.timeout(20):
        while await code_of(running, signed(TWO)) != 0:
            pass
    # The provider withdrew the old key.
    assert await code_of(running, signed(ONE)) == 0x86
    assert len(provider.paths) <= 4


async def test_a_provider_that_is_away_at_the_start_is_asked_again(start: Start) -> None:
    provider = Provider(ONE)
    await provider.start()
    await provider.stop()
    running = await start(jwt={"jwks_url": f"{provider.issuer}/keys", "refetch": 1})
    await running.amqp()
    assert await code_of(running, signed(ONE)) == 0x89
    (refusal,) = [one for one in running.node.refusals.recent if one.event == "login_refused"]
    assert "there are no keys to verify the token" in refusal.fields["note"]
    assert provider.issuer in refusal.fields["note"]
    await provider.start(provider.port)
    async with asyncio.timeout(20):
        while await code_of(running, signed(ONE)) != 0:
            pass
    assert (await running.scrape()).value("trellis_token_key_fetches_total", result="failed") >= 1
    await provider.stop()


async def test_logins_wait_for_the_first_keys(start: Start) -> None:
    provider = Provider(ONE)
    provider.open.clear()
    await provider.start()
    running = await start(jwt={"jwks_url": f"{provider.issuer}/keys"})
    logins = [asyncio.create_task(code_of(running, signed(ONE))) for _ in range(12)]
    tokens = running.node.tokens
    assert tokens is not None and isinstance(tokens.tokens.source, ProviderKeys)
    source = tokens.tokens.source
    await running.until(lambda: source.waiting == 12)
    assert (await running.scrape()).value("trellis_token_logins_waiting") == 12
    await running.amqp()  # Other clients are served meanwhile.
    provider.open.set()
    assert await asyncio.gather(*logins) == [0] * 12
    assert source.waiting == 0
    await provider.stop()


async def test_a_reload_keeps_the_keys_of_the_same_provider(
    start: Start, provider: Provider
) -> None:
    running = await start(jwt={"jwks_url": f"{provider.issuer}/keys"})
    assert await code_of(running, signed(ONE)) == 0
    port = provider.port
    await provider.stop()
    jwt = {"jwks_url": f"http://localhost:{port}/keys", "leeway": 5}
    await running.reload(load_with(running, jwt))
    assert await code_of(running, signed(ONE)) == 0
    await running.reload(load_with(running, {"jwks_url": f"http://localhost:{port}/other"}))
    assert await code_of(running, signed(ONE)) == 0x89


def load_with(running: Running, jwt: dict[str, object]) -> Any:
    return msgspec.structs.replace(running.chosen, jwt=msgspec.convert(jwt, Jwt))


# -- one fetch


def jwk_of(key: Any, **more: object) -> dict[str, object]:
    return {**key.as_dict(private=False), **more}


def document(*rows: object) -> bytes:
    return answer_of(json.dumps({"keys": rows}).encode())


FAULTS: dict[str, tuple[Callable[[], bytes | None], str]] = {
    "huge": (lambda: answer_of(b" " * (10 << 20)), f"larger than {MAX_DOCUMENT} bytes"),
    "endless headers": (lambda: b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000, "too long"),
    "silent": (lambda: None, "no complete answer within"),
    "cut": (lambda: answer_of(b"{}")[:-1], "without sending complete message body"),
    "empty": (lambda: b"", "without an answer"),
    "no HTTP": (lambda: b"220 ftp\r\n\r\n", "illegal status line"),
    "redirect": (
        lambda: answer_of(b"", "302 Found", "Location: http://169.254.169.254/\r\n"),
        "status 302, a redirect to http://169.254.169.254/; set the URL without redirects",
    ),
    "missing": (lambda: answer_of(b"", "404 Not Found"), "status 404"),
    "no JSON": (lambda: answer_of(b"<html>"), "JSON is malformed"),
    "nested": (lambda: answer_of(b"[" * 100_000), "RecursionError|recursion"),
    "no list": (lambda: answer_of(b"{}"), "no list `keys`"),
    "many": (lambda: document(*[jwk_of(ONE)] * (MAX_KEYS + 1)), f"has {MAX_KEYS + 1} keys"),
    "secrets": (
        lambda: document({"kty": "oct", "k": "AAAA", "kid": "one"}),
        "none of the 1 keys in the document can verify",
    ),
    "unusable": (
        lambda: document(
            7, {"kty": "new"}, {"kty": "RSA"}, jwk_of(ONE, use="enc"), jwk_of(ONE, n="AQAB")
        ),
        "none of the 5 keys",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_answer_is_refused_with_a_reason(
    provider: Provider, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "silent":
        monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.1)
    answer, reason = FAULTS[fault]
    provider.answers = lambda path: answer()
    fetcher = KeyFetcher(Jwt(jwks_url=f"{provider.issuer}/keys"))
    with pytest.raises(FetchError, match=reason) as caught:
        await asyncio.to_thread(fetcher.fetch)
    assert provider.issuer in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"issuer": "https://other.example"}, "names the issuer 'https://other.example'"),
        ({}, "the field `jwks_uri` must be a URL"),
        ({"jwks_uri": "http://10.0.0.1/keys"}, "must begin with https://"),
        ({"jwks_uri": "file:///etc/passwd"}, "must be a URL"),
    ],
)
async def test_a_discovery_document_must_name_the_issuer_and_a_safe_url(
    provider: Provider, fields: dict[str, str], reason: str
) -> None:
    body = json.dumps({"issuer": provider.issuer} | fields).encode()
    provider.answers = lambda path: answer_of(body)
    fetcher = KeyFetcher(Jwt(issuer=provider.issuer, discovery=True))
    with pytest.raises(FetchError, match=reason):
        await asyncio.to_thread(fetcher.fetch)
    assert len(provider.paths) == 1


async def test_the_certificate_of_a_provider_is_verified(authority: Authority) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.sign("localhost"))
    provider = Provider(ONE, context=context)
    await provider.start()
    url = f"{provider.issuer}/keys"
    with pytest.raises(FetchError, match=r"TLS failed: .*; check jwt\.ca"):
        await asyncio.to_thread(KeyFetcher(Jwt(jwks_url=url)).fetch)
    trusting = KeyFetcher(Jwt(jwks_url=url, ca=str(authority.file)))
    assert [key.kid for key in await asyncio.to_thread(trusting.fetch)] == ["one"]
    other = url.replace("localhost", "127.0.0.1")
    with pytest.raises(FetchError, match="TLS failed"):
        await asyncio.to_thread(KeyFetcher(Jwt(jwks_url=other, ca=str(authority.file))).fetch)
    await provider.stop()
    with pytest.raises(SettingsError, match=r"jwt\.ca"):
        KeyFetcher(Jwt(jwks_url=url, ca="/nowhere"))


def test_a_fetch_ends_before_the_handshake_of_a_client_that_waits() -> None:
    assert load([], {}, {}).limits.handshake > FETCH_SECONDS


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"jwks_url": "http://id.example/keys"}, "must begin with https://"),
        ({"jwks_url": "id.example"}, "must be a URL"),
        ({"jwks_url": "https://id.example:99999/keys"}, "must be a URL"),
        (
            {"discovery": "true", "issuer": "corporate"},
            "jwt.issuer: for the discovery of keys, the issuer must be a URL",
        ),
        ({"jwks_url": "https://a.example/", "keys": "f"}, "name one source of keys"),
        ({"keep": "1"}, "jwt.keep: must be"),
    ],
)
def test_wrong_settings_of_a_provider_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load([], {}, {f"jwt.{key}": value for key, value in given.items()})


# -- time: a clock that jumps, and a provider that is a function


class CountingProvider:
    """A provider whose answers the test chooses; each fetch waits until the test permits it."""

    def __init__(self, opened: bool, away: bool) -> None:
        self.keys = [ONE]
        self.away = away
        self.fetches = 0
        self.gate = threading.Event()
        if opened:
            self.gate.set()

    def fetch(self) -> list[Any]:
        assert self.gate.wait(20)
        self.fetches += 1
        if self.away:
            raise FetchError("the provider is unreachable")
        return list(self.keys)


class Unused(Authenticator):
    """The authenticator for logins without a token, which these tests do not have."""


class Clock:
    """A TokenAuthenticator with a CountingProvider, in a loop whose clock the test sets forward."""

    def __init__(self, opened: bool = True, away: bool = False) -> None:
        self.provider = CountingProvider(opened, away)
        jwt = Jwt(jwks_url="https://id.example/keys", refresh=300, refetch=10, keep=3_600)
        self.authenticator = TokenAuthenticator(jwt, Unused())
        self.source = ProviderKeys(jwt, self.provider.fetch)
        self.authenticator.tokens.source = self.source
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        self.loop = loop
        loop.ahead += 1_000
        self.source.start()

    async def settle(self, seconds: float = 0) -> None:
        """Set the clock forward, and wait until no fetch is under way."""
        self.loop.ahead += seconds
        for _ in range(5):
            await asyncio.sleep(0)
        while self.source._fetching:  # noqa: ASYNC110 - a thread fetches
            await asyncio.sleep(0.001)
        for _ in range(15):
            await asyncio.sleep(0)

    def ask(self, token: str) -> list[Verdict]:
        """Log in with a token; return a list to which the verdict will be added."""
        verdicts: list[Verdict] = []
        credentials = Credentials("x", token.encode(), "/", "10.0.0.1", False)
        self.authenticator.authenticate(credentials, verdicts.append)
        return verdicts

    async def judge(self, token: str) -> Verdict:
        verdicts = self.ask(token)
        await self.settle()
        (verdict,) = verdicts
        return verdict


def jumping(steps: Callable[[], Any]) -> None:
    """Run a coroutine function in an event loop whose clock jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(steps())


def test_keys_are_fetched_again_and_old_ones_used_while_the_provider_is_away() -> None:
    async def steps() -> None:
        clock = Clock()
        await clock.settle()
        assert (await clock.judge(signed(ONE))).identity is not None
        clock.provider.keys = [TWO]
        await clock.settle(301)
        assert clock.provider.fetches == 2
        assert (await clock.judge(signed(ONE))).identity is None
        clock.provider.away = True
        for _ in range(10):
            await clock.settle(301)
        assert clock.source.fetches["failed"] >= 8
        assert (await clock.judge(signed(TWO, exp=2_000_000_000))).identity is not None
        await clock.settle(700)
        late = await clock.judge(signed(TWO))
        assert late.identity is None and late.busy
        assert "the provider is unreachable" in late.details
        clock.provider.away = False
        await clock.settle(301)
        assert (await clock.judge(signed(TWO))).identity is not None
        assert clock.source.problem == ""

    jumping(steps)


def test_a_failed_fetch_is_repeated_after_growing_times() -> None:
    async def steps() -> None:
        clock = Clock(away=True)
        await clock.settle()
        counts = []
        for _ in range(40):
            await clock.settle(10.5)
            counts.append(clock.provider.fetches)
        # The fetch is repeated after 10, 20, 40, 80 and 160 s, then every 300 s.
        assert counts[0] == 2 and 6 <= counts[-1] <= 8

    jumping(steps)


def test_random_key_ids_do_not_make_the_broker_fetch_without_end() -> None:
    async def steps() -> None:
        clock = Clock()
        await clock.settle()
        body = signed(ONE).split(".", 1)[1]
        kids = itertools.count()
        for _ in range(60):
            clock.loop.ahead += 1
            logins = [clock.ask(f"{header(f'k{next(kids)}')}.{body}") for _ in range(50)]
            await clock.settle()
            assert all(one and one[0].identity is None for one in logins)
            assert (await clock.judge(signed(ONE))).identity is not None
        assert clock.provider.fetches <= 1 + 60 // 10 + 1
        assert clock.authenticator.refused == {"kid": 3_000}

    jumping(steps)


def header(kid: str) -> str:
    text = json.dumps({"alg": "RS256", "kid": kid}).encode()
    return urlsafe_b64encode(text).decode().rstrip("=")


def test_the_number_of_logins_that_wait_is_bounded_and_each_gets_a_verdict() -> None:
    async def steps() -> None:
        clock = Clock(opened=False)
        logins = [clock.ask(signed_once()) for _ in range(WAITING_MAX + 50)]
        assert clock.source.waiting == WAITING_MAX
        assert sum(bool(one) for one in logins) == 50
        assert all(one[0].busy for one in logins if one)
        clock.provider.gate.set()
        await clock.settle()
        # Few logins are verified in each turn.
        assert clock.source.waiting > WAITING_MAX // 2
        while clock.source.waiting:  # noqa: ASYNC110 - counts turns of the loop
            await asyncio.sleep(0)
        assert sum(one[0].identity is not None for one in logins) == WAITING_MAX
        assert (await clock.judge(signed(ONE))).identity is not None

    token = signed(ONE)

    def signed_once() -> str:
        return token

    jumping(steps)


def test_logins_with_an_unknown_key_are_busy_while_the_provider_may_have_the_key() -> None:
    """Check that a login gets the verdict "busy" if its key is unknown and may be a new one.

    That is the case while the keys are fetched, and after a failed fetch. A busy verdict does not
    count as a bad token.
    """

    async def steps() -> None:
        clock = Clock()
        await clock.settle()
        clock.loop.ahead += 11
        clock.provider.keys = [TWO]
        clock.provider.gate.clear()
        token = signed(TWO)
        logins = [clock.ask(token) for _ in range(WAITING_MAX + 20)]
        (refused,) = logins[-1]
        assert refused.busy and refused.details.startswith(
            "invalid token: no key has the token's key ID (kid)"
        )
        assert "and the keys are being renewed" in refused.details
        assert sum(bool(one) for one in logins) == 20 and all(one[0].busy for one in logins if one)
        clock.provider.gate.set()
        await clock.settle()
        while clock.source.waiting:  # noqa: ASYNC110 - counts turns of the loop
            await asyncio.sleep(0)
        assert sum(one[0].identity is not None for one in logins) == WAITING_MAX
        # The keys are known now: a token with another key is invalid.
        assert not (await clock.judge(signed(ONE))).busy
        clock.provider.keys, clock.provider.away = [ONE], True
        await clock.settle(11)
        for _ in range(2):  # The first login waits for the fetch, the second finds it failed.
            away = await clock.judge(signed(ONE))
            assert away.identity is None and away.busy
            assert "and the last fetch of the keys failed" in away.details
        clock.provider.away = False
        await clock.settle(301)
        assert (await clock.judge(signed(ONE))).identity is not None

    jumping(steps)


def test_a_stop_answers_the_logins_that_wait() -> None:
    async def steps() -> None:
        clock = Clock(opened=False)
        waiting = clock.ask(signed(ONE))
        assert not waiting
        clock.authenticator.tokens.source.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting[0].identity is None
        clock.provider.gate.set()
        await clock.settle()
        assert not clock.source.keys()

    jumping(steps)


def test_the_keys_of_a_file_are_not_fetched(tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk_of(ONE)]}))
    tokens = Tokens(Jwt(keys=str(file)))
    assert not tokens.source.request(lambda: None)
    assert len(tokens.source.keys()) == 1
