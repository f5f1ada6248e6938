"""Policies: list, create and delete them."""

from __future__ import annotations

import logging
from typing import Final

from broker.compatibility import MISSING, judge_policy_key
from broker.names import shown
from broker.queues.policies import EFFECTIVE_KEYS, Policy, policy_of
from broker.vhost.vhost import VirtualHost
from trellis.http.management import serializers
from trellis.http.management.answers import Call, Empty, Listing, Row, iterate, not_found

logger: Final = logging.getLogger(__name__)


async def policies(call: Call) -> Listing:
    """List the policies of the virtual host in the path, or of all visible virtual hosts."""
    vhosts = call.path_vhosts
    return Listing(
        iterate(
            serializers.policy_row(vhost, policy)
            for vhost in vhosts
            for policy in list(vhost.policies.by_name.values())
        )
    )


async def policy(call: Call) -> Row:
    """Return the policy that the path names."""
    return serializers.policy_row(*known_policy(call))


def known_policy(call: Call) -> tuple[VirtualHost, Policy]:
    """Return the virtual host and the policy that the path names. Raises ApiRefusal."""
    vhost = call.vhost(call.path_parameters[0])
    known = vhost.policies.by_name.get(call.path_parameters[1])
    if known is None:
        raise not_found(f"there is no policy '{call.path_parameters[1]}' in vhost '{vhost.name}'")
    return vhost, known


async def put_policy(call: Call) -> Empty:
    """Create or replace the policy that the path names."""
    vhost, policy = given_policy(call)
    known = policy.name in vhost.policies.by_name
    await call.make_durable(lambda ticket: vhost.applied_policies.set_policy(policy, ticket))
    log_keys_without_effect(call, vhost.name, policy)
    return Empty(not known)


def given_policy(call: Call) -> tuple[VirtualHost, Policy]:
    """Return the virtual host that the path names, and the policy in the body.

    Raises ApiRefusal if the request is invalid, and BrokerError if the policy is invalid or the
    user may not set it.
    """
    vhost = call.vhost(call.path_parameters[0])
    policy = policy_of(vhost.name, call.path_parameters[1], call.body())
    if not call.identity.administrator:
        call.rights(vhost).check_policy(policy)
    return vhost, policy


def log_keys_without_effect(call: Call, vhost: str, policy: Policy) -> None:
    """Log each key of a new policy that is known in RabbitMQ and has no effect in Trellis."""
    for key in policy.definition:
        verdict = judge_policy_key(key, EFFECTIVE_KEYS)
        if verdict.kind == MISSING:
            logger.warning(
                "user '%s' set key '%s' of policy '%s' in vhost '%s'; the key %s",
                *map(shown, (call.identity.name, key, policy.name, vhost)),
                verdict.text,
            )


async def delete_policy(call: Call) -> Empty:
    """Delete the policy that the path names."""
    vhost, known = known_policy(call)
    call.require_entry(vhost)
    await call.make_durable(lambda ticket: vhost.applied_policies.clear_policy(known.name, ticket))
    return Empty()
