"""The metrics of logins: hashed passwords, waiting logins, tokens and the keys of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trellis.monitoring.page import MetricsPage
from trellis.server.node import BrokerNode

if TYPE_CHECKING:
    from trellis.auth.tokens.authenticator import TokenAuthenticator


def add_logins(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page the metrics of logins."""
    page.counter(
        "trellis_passwords_hashed",
        "Total number of passwords hashed for logins.",
        node.accounts.passwords_hashed,
    )
    page.gauge(
        "trellis_logins_waiting",
        "Number of different credentials that wait to be checked.",
        node.accounts.waiting,
    )
    throttle = node.accounts.login_throttle
    page.counter(
        "trellis_logins_delayed",
        "Total number of logins throttled because of earlier failures.",
        throttle.throttled,
    )
    page.gauge(
        "trellis_login_failures",
        "Number of addresses (`by=address`) or user names (`by=user`) with recent login failures.",
        len(throttle.addresses),
        by="address",
    )
    page.gauge(
        "trellis_login_failures",
        "Number of addresses (`by=address`) or user names (`by=user`) with recent login failures.",
        len(throttle.users),
        by="user",
    )
    page.gauge(
        "trellis_logins_waiting_limit",
        "Maximum number of different credentials that wait to be checked (auth.queue). Above this "
        "number, logins are refused.",
        node.settings.auth.queue,
    )
    if node.tokens is not None:
        _add_tokens(page, node.tokens)


def _add_tokens(page: MetricsPage, tokens: TokenAuthenticator) -> None:
    """Add to the page the metrics of tokens and of their keys."""
    # Imported here, because a broker without tokens does not need the module; this one has loaded
    # it at its start.
    from trellis.auth.tokens.provider import ProviderKeys

    page.counter(
        "trellis_tokens_accepted", "Total number of tokens that were accepted.", tokens.accepted
    )
    for part, count in tokens.refused.items():
        page.counter(
            "trellis_tokens_refused",
            "Total number of tokens that were refused. `part` is the claim or the header field "
            "because of which the token was refused.",
            count,
            part=part,
        )
    source = tokens.tokens.source
    page.gauge("trellis_token_keys", "Number of keys that verify tokens now.", len(source.keys()))
    if not isinstance(source, ProviderKeys):
        return
    for result, count in source.fetches.items():
        page.counter(
            "trellis_token_key_fetches",
            "Total number of times that the keys were fetched from the provider, by result.",
            count,
            result=result,
        )
    page.gauge(
        "trellis_token_keys_age_seconds",
        "Seconds since the keys were fetched from the provider. After `jwt.keep` seconds, the keys "
        "are not used any more.",
        source.age,
    )
    page.gauge(
        "trellis_token_logins_waiting",
        "Number of logins that wait for the keys of the provider.",
        source.waiting,
    )
