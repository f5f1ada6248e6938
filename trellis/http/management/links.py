"""Shovels and federation links, with the fields of RabbitMQ's plugins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from trellis.bridge import contract
from trellis.bridge.amqp_uri import parse_uri
from trellis.bridge.collecting import UPSTREAM, UPSTREAM_SET
from trellis.bridge.service import KnownLink
from trellis.bridge.shovel_definition import federation_of, shovel_of
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    iterate,
    not_found,
)

#: RabbitMQ's words for the states of a link.
SHOVEL_STATES: Final = {
    contract.UP: "running",
    contract.CONNECTING: "starting",
    contract.ENDED: "terminated",
    contract.INVALID: "terminated",
}
LINK_STATES: Final = {**SHOVEL_STATES, contract.INVALID: "error"}


def _time(link: KnownLink) -> str:
    return datetime.fromtimestamp(link.since, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _links(call: Call, kind: str) -> Iterator[KnownLink]:
    """Yield the links of a kind in the path's virtual host, or in all visible virtual hosts."""
    names = {vhost.name for vhost in call.path_vhosts}
    for link in call.node.bridges:
        if link.state.kind == kind and link.state.vhost in names:
            yield link


def _shovel(call: Call, link: KnownLink) -> Row:
    state = link.state
    source, _, target = state.remote.partition(" -> ")
    row: Row = {
        "node": call.node.settings.node.name,
        "timestamp": _time(link),
        "name": state.name,
        "vhost": state.vhost,
        "type": "dynamic",
        "state": SHOVEL_STATES[state.state],
        "src_uri": source,
        "src_protocol": "amqp091",
        "dest_uri": target,
        "dest_protocol": "amqp091",
    }
    vhost = call.broker.vhosts.get(state.vhost)
    value = vhost and vhost.parameters.values.get((contract.SHOVEL, state.name))
    if isinstance(value, dict):
        for end in ("src", "dest"):
            for part in ("queue", "exchange", "exchange-key"):
                if isinstance(text := value.get(f"{end}-{part}"), str):
                    row[f"{end}_{part.replace('-', '_')}"] = text
    if state.error:
        row["reason"] = state.error
    return row


async def shovels(call: Call) -> Listing:
    """List the shovels, of one virtual host if the path names it."""
    return Listing(iterate(_shovel(call, link) for link in _links(call, contract.SHOVEL)))


async def delete_shovel(call: Call) -> Empty:
    """Delete the shovel that the path names."""
    vhost = call.require_entry(call.vhost(call.path_parameters[0]))
    name = call.path_parameters[1]
    if (contract.SHOVEL, name) not in vhost.parameters.values:
        raise not_found(f"there is no shovel '{name}' in vhost '{vhost.name}'")
    await call.make_durable(lambda ticket: vhost.parameters.clear(contract.SHOVEL, name, ticket))
    return Empty()


def _federation_link(call: Call, link: KnownLink) -> Row:
    state = link.state
    upstream, _, exchange = state.name.partition(" -> ")
    row: Row = {
        "node": call.node.settings.node.name,
        "vhost": state.vhost,
        "type": "exchange",
        "exchange": exchange,
        "upstream": upstream,
        "upstream_exchange": exchange,
        "uri": state.remote.partition(" -> ")[0],
        "status": LINK_STATES[state.state],
        "timestamp": _time(link),
    }
    if state.error:
        row["error"] = state.error
    return row


async def federation_links(call: Call) -> Listing:
    """List the links of federated exchanges, of one virtual host if the path names it."""
    links = _links(call, contract.FEDERATION)
    return Listing(iterate(_federation_link(call, link) for link in links))


def check_parameter(call: Call, component: str, vhost: str, name: str, value: object) -> None:
    """Refuse a parameter that defines a shovel or an upstream, and that the user may not set.

    A URI of this broker without a user name logs in as the user `shovels.user`, who may do more
    than the caller. So only administrators may set a shovel with such a URI. The links of an
    upstream publish to this broker as `shovels.user`, so only administrators may set upstreams, and
    entries of an upstream set that replace the URI or the exchange of an upstream.

    Links connect to this broker from this machine, whichever host a URI names: a host name may
    resolve to a loopback address later. So a URI with a user that may log in from this machine only
    would let a caller on another machine act as this user. Only administrators may set such a URI.
    Raises ApiRefusal.
    """
    if component == UPSTREAM_SET and any(
        isinstance(entry, dict) and entry.keys() - {"upstream"}
        for entry in (value if isinstance(value, list) else ())
    ):
        call.require_administrator(
            f"set entries of a {UPSTREAM_SET} that replace keys of their upstream, such as its uri"
        )
    try:
        if component == contract.SHOVEL:
            link = shovel_of(vhost, name, value)
        elif component == UPSTREAM:
            link = federation_of(vhost, name, value, "name", "topic", "name")
        else:
            return
    except ValueError as error:
        raise bad_request(f"invalid {component} '{name}' in vhost '{vhost}': {error}") from None
    uris = [parse_uri(uri) for uri in (*link.source.uris, *link.target.uris)]
    if any(not uri.host and uri.user is None for uri in uris):
        call.require_administrator(
            "set federation upstreams, and shovels that connect to this broker without a user name "
            "(a URI with a user name is amqp://USER:PASSWORD@/VHOST)"
        )
    for user, _ in (uri.login for uri in uris):
        account = call.node.accounts.find_account(user, proven=False)
        if account is not None and account.loopback_only:
            call.require_administrator(
                f"set shovels with the user '{user}', who may log in only from the machine of this "
                "broker"
            )
