"""Logins over HTTP: the verdict on the password or token of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from broker.access.identity import Credentials, Identity, Verdict
from trellis.auth.authenticate import Accounts
from trellis.monitoring.http_counters import HttpCounters
from trellis.server.listener_context import peer_of
from trellis.server.refusals import RefusalLog
from trellis.settings import Settings

if TYPE_CHECKING:
    from trellis.auth.tokens.authenticator import TokenAuthenticator


class LoginParts(Protocol):
    """The parts of a broker node, or of a standby, that check and log the logins over HTTP."""

    @property
    def settings(self) -> Settings:
        """The settings of the node."""

    @property
    def accounts(self) -> Accounts:
        """The authenticator for passwords."""

    @property
    def tokens(self) -> TokenAuthenticator | None:
        """The authenticator for tokens; None if the settings name no keys."""

    @property
    def refusals(self) -> RefusalLog:
        """The log of refusals."""


async def authenticate(
    node: LoginParts,
    counters: HttpCounters,
    login: tuple[str | None, bytes, bytes],
    address: object,
    direct: bool,
) -> Verdict:
    """Return the verdict on a login (user, password, token) from an address, and count the login.

    `address` is the address of the client's transport. `direct` is False if a proxy or a web page
    of another site may be behind the request; then the client does not count as a client on this
    machine.
    """
    user, password, token = login
    if user is None and not token:
        return Verdict(None, "this request requires a user and a password, or a token")
    answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def on_verdict(verdict: Verdict) -> None:
        if not answer.done():
            answer.set_result(verdict)

    peer = peer_of(address)
    credentials = Credentials(
        user or "", token or password, "/", peer.address, peer.local and direct
    )
    if node.tokens is None or not node.tokens.judge_token(credentials, on_verdict):
        node.accounts.authenticate(credentials, on_verdict)
    verdict = await answer
    if verdict.identity is None:
        node.refusals.add(
            "login_refused",
            {
                "protocol": "http",
                **({"user": user} if user else {}),
                "address": peer.address,
                "note": verdict.details,
            },
        )
    outcome = "accepted" if verdict.identity is not None else "busy" if verdict.busy else "refused"
    logins = counters.logins
    logins[outcome] = logins.get(outcome, 0) + 1
    return verdict


def tags_of(identity: Identity) -> set[str]:
    """Return the tags of a user, with `administrator` for a user with all rights."""
    return {*identity.tags, "administrator"} if identity.administrator else set(identity.tags)
