"""Parameters of components, global parameters and operator policies: list, set and delete them.

Limits of virtual hosts and policies have paths of their own (limits.py, policies.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from broker.compatibility import COMPONENTS, MISSING, OTHER_PARAMETER
from broker.names import shown
from broker.queues.policies import Policy, operator_policy_of
from broker.vhost.parameters import GLOBAL, OPERATOR_POLICY
from broker.vhost.vhost import VirtualHost
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    iterate,
    not_found,
)
from trellis.http.management.links import check_parameter
from trellis.http.management.policies import log_keys_without_effect

logger: Final = logging.getLogger(__name__)
#: Components whose objects have paths of their own.
ELSEWHERE: Final = {
    "policy": "/api/policies",
    OPERATOR_POLICY: "/api/operator-policies",
    "vhost-limits": "/api/vhost-limits",
}


# -- parameters of a component: path parameters are component, virtual host, name


def _rows(vhosts: list[VirtualHost], component: str | None) -> Iterator[Row | None]:
    for vhost in vhosts:
        for (owner, name), value in list(vhost.parameters.values.items()):
            wanted = owner not in ("", OPERATOR_POLICY) and component in (None, owner)
            yield _row(vhost, owner, name, value) if wanted else None


def _row(vhost: VirtualHost, component: str, name: str, value: object) -> Row:
    return {"value": value, "vhost": vhost.name, "component": component, "name": name}


async def parameters(call: Call) -> Listing:
    """List the parameters, of one component and of one virtual host if the path names them."""
    path = call.path_parameters
    vhosts = (
        [call.require_entry(call.vhost(path[1]))]
        if len(path) > 1
        else [vhost for vhost in call.vhosts if call.enters(vhost)]
    )
    return Listing(iterate(_rows(vhosts, path[0] if path else None)))


async def parameter(call: Call) -> Row:
    """Return the parameter that the path names."""
    component, vhost, name = _named(call)
    return _row(vhost, component, name, vhost.parameters.values[component, name])


def _target(call: Call) -> tuple[str, VirtualHost, str]:
    """Return component, virtual host and name of the parameter in a path.

    Raises ApiRefusal, and AccessRefused if the user may not enter the virtual host.
    """
    component, vhost, name = call.path_parameters
    if component == GLOBAL:
        # Global parameters are stored under the component "", and only administrators may set them.
        raise bad_request(
            f"the path of parameter '{name}' has no component; a parameter without a component is "
            f"a global parameter: /api/global-parameters/{quote(name, '')}"
        )
    if component in ELSEWHERE:
        raise bad_request(
            f"parameters of the component '{component}' have another path: {ELSEWHERE[component]}"
        )
    return component, call.require_entry(call.vhost(vhost)), name


def _named(call: Call) -> tuple[str, VirtualHost, str]:
    """Return component, virtual host and name of the existing parameter in a path.

    Raises ApiRefusal, and AccessRefused if the user may not enter the virtual host.
    """
    component, vhost, name = _target(call)
    if (component, name) not in vhost.parameters.values:
        raise not_found(
            f"there is no parameter '{name}' of component '{component}' in vhost '{vhost.name}'"
        )
    return component, vhost, name


def _value(call: Call) -> Any:
    row = call.body()
    if "value" not in row:
        raise bad_request("the field 'value' of the body is missing")
    return row["value"]


async def put_parameter(call: Call) -> Empty:
    """Set the parameter that the path names to the `value` in the body.

    A parameter of a component that is unknown to the broker is only stored; the log says that the
    parameter has no effect.
    """
    component, vhost, name = _target(call)
    value = _value(call)
    check_parameter(call, component, vhost.name, name, value)
    fresh = await call.make_durable(
        lambda ticket: vhost.parameters.set(component, name, value, ticket)
    )
    comparison = COMPONENTS.get(component, OTHER_PARAMETER)
    if comparison.kind != MISSING:
        return Empty(fresh)
    logger.warning(
        "user '%s' set parameter '%s' of component '%s' in vhost '%s'; the parameter %s",
        *map(shown, (call.identity.name, name, component, vhost.name)),
        comparison.text,
    )
    return Empty(fresh)


async def delete_parameter(call: Call) -> Empty:
    """Delete the parameter that the path names."""
    component, vhost, name = _named(call)
    await call.make_durable(lambda ticket: vhost.parameters.clear(component, name, ticket))
    return Empty()


# -- global parameters


def _globals(call: Call) -> dict[str, object]:
    values = call.broker.vhosts["/"].parameters.values
    return {name: value for (component, name), value in values.items() if component == GLOBAL}


async def global_parameters(call: Call) -> Listing:
    """List the global parameters."""
    return Listing(
        iterate({"name": name, "value": value} for name, value in _globals(call).items())
    )


async def global_parameter(call: Call) -> Row:
    """Return the global parameter that the path names."""
    name = call.path_parameters[0]
    known = _globals(call)
    if name not in known:
        raise not_found(f"there is no global parameter '{name}'")
    return {"name": name, "value": known[name]}


async def put_global_parameter(call: Call) -> Empty:
    """Set the global parameter that the path names to the `value` in the body.

    Only `cluster_name` has an effect; the broker only stores all other global parameters.
    """
    value = _value(call)
    holder = call.broker.vhosts["/"].parameters
    fresh = await call.make_durable(
        lambda ticket: holder.set(GLOBAL, call.path_parameters[0], value, ticket)
    )
    return Empty(fresh)


async def delete_global_parameter(call: Call) -> Empty:
    """Delete the global parameter that the path names."""
    await global_parameter(call)
    holder = call.broker.vhosts["/"].parameters
    await call.make_durable(lambda ticket: holder.clear(GLOBAL, call.path_parameters[0], ticket))
    return Empty()


# -- operator policies: path parameters are virtual host, name


def _policy_row(vhost: VirtualHost, policy: Policy) -> Row:
    return {"vhost": vhost.name, "name": policy.name, **policy.row}


async def operator_policies(call: Call) -> Listing:
    """List the operator policies of the path's virtual host, or of all visible vhosts."""
    vhosts = call.path_vhosts
    return Listing(
        iterate(
            _policy_row(vhost, policy)
            for vhost in vhosts
            for policy in list(vhost.policies.operator_by_name.values())
        )
    )


async def operator_policy(call: Call) -> Row:
    """Return the operator policy that the path names."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    known = vhost.policies.operator_by_name.get(name)
    if known is None:
        raise not_found(f"there is no operator policy '{name}' in vhost '{vhost.name}'")
    return _policy_row(vhost, known)


async def put_operator_policy(call: Call) -> Empty:
    """Create or replace the operator policy that the path names."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    fresh = name not in vhost.policies.operator_by_name
    policy = operator_policy_of(vhost.name, name, call.body())
    await call.make_durable(
        lambda ticket: vhost.applied_policies.set_operator_policy(policy, ticket)
    )
    log_keys_without_effect(call, vhost.name, policy)
    return Empty(fresh)


async def delete_operator_policy(call: Call) -> Empty:
    """Delete the operator policy that the path names."""
    await operator_policy(call)
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    await call.make_durable(
        lambda ticket: vhost.applied_policies.clear_parameter(OPERATOR_POLICY, name, ticket)
    )
    return Empty()
