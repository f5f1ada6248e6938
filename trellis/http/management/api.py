"""The table of API routes: the handler of each path, and the user tags that it requires.

ANY_USER        every user, with or without a tag: streams; `trellis list` of own virtual hosts
MANAGEMENT      any of the four tags: own virtual hosts, own connections
POLICYMAKER     tag policymaker or administrator: policies
MONITORING      tag monitoring or administrator: everything may be seen
ADMINISTRATOR   tag administrator: users, permissions, virtual hosts, definitions
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from trellis.http import contract
from trellis.http.management import (
    bindings,
    connections,
    consequences,
    definitions,
    diagnosis,
    extensions,
    health,
    limits,
    links,
    messages,
    moving,
    overview,
    page,
    parameters,
    peeking,
    permissions,
    policies,
    readers,
    retaining,
    right_consequences,
    roles,
    routing,
    stream_rows,
    streaming,
    topic_rules,
    topology,
    tracing,
    users,
)
from trellis.http.management.answers import Call

Answer = Callable[[Call], Awaitable[object]]

ANY_USER: Final[frozenset[str]] = frozenset()
ADMINISTRATOR: Final = frozenset({"administrator"})
MONITORING: Final = frozenset({"administrator", "monitoring"})
POLICYMAKER: Final = frozenset({"administrator", "policymaker"})
MANAGEMENT: Final = frozenset({"administrator", "monitoring", "policymaker", "management"})

_BETWEEN: Final = (
    "/api/bindings/{vhost}/e/{source}/q/{destination}",
    "/api/bindings/{vhost}/e/{source}/e/{destination}",
)

ROUTES: Final[list[tuple[str, str, frozenset[str], Answer]]] = [
    ("GET", "/api/overview", MANAGEMENT, overview.overview),
    ("GET", "/api/cluster-name", MANAGEMENT, overview.cluster_name),
    ("PUT", "/api/cluster-name", ADMINISTRATOR, overview.put_cluster_name),
    ("GET", "/api/nodes", MONITORING, overview.nodes),
    ("GET", "/api/nodes/{name}", MONITORING, overview.node),
    ("GET", "/api/nodes/{name}/memory", MONITORING, overview.node_memory),
    ("POST", "/api/rebalance/queues", ADMINISTRATOR, overview.rebalance),
    ("GET", "/api/whoami", MANAGEMENT, overview.whoami),
    ("GET", "/api/auth/attempts/{node}", MONITORING, overview.login_attempts),
    *[
        ("GET", f"/api/{name}", MANAGEMENT, overview.empty_list)
        for name in (
            "extensions",
            "feature-flags",
            "deprecated-features",
            "deprecated-features/used",
        )
    ],
    ("GET", "/api/shovels", MONITORING, links.shovels),
    ("GET", "/api/shovels/{vhost}", MONITORING, links.shovels),
    ("DELETE", "/api/shovels/vhost/{vhost}/{name}", POLICYMAKER, links.delete_shovel),
    ("GET", "/api/federation-links", MONITORING, links.federation_links),
    ("GET", "/api/federation-links/{vhost}", MONITORING, links.federation_links),
    ("GET", "/api/vhosts", MANAGEMENT, topology.vhosts),
    ("GET", "/api/vhosts/{name}", MANAGEMENT, topology.vhost),
    ("PUT", "/api/vhosts/{name}", ADMINISTRATOR, topology.put_vhost),
    ("DELETE", "/api/vhosts/{name}", ADMINISTRATOR, topology.delete_vhost),
    ("POST", "/api/vhosts/{name}/deletion/protection", ADMINISTRATOR, topology.protect_vhost),
    ("DELETE", "/api/vhosts/{name}/deletion/protection", ADMINISTRATOR, topology.unprotect_vhost),
    ("GET", "/api/vhosts/{name}/permissions", ADMINISTRATOR, permissions.vhost_permissions),
    (
        "GET",
        "/api/vhosts/{name}/topic-permissions",
        ADMINISTRATOR,
        permissions.vhost_topic_permissions,
    ),
    ("GET", "/api/vhosts/{name}/connections", MANAGEMENT, connections.connections),
    ("GET", "/api/vhosts/{name}/channels", MANAGEMENT, connections.channels),
    ("GET", "/api/users", ADMINISTRATOR, users.users),
    ("GET", "/api/users/without-permissions", ADMINISTRATOR, users.users_without_permissions),
    ("POST", "/api/users/bulk-delete", ADMINISTRATOR, users.bulk_delete),
    ("GET", "/api/users/{name}", ADMINISTRATOR, users.user),
    ("PUT", "/api/users/{name}", ADMINISTRATOR, users.put_user),
    ("DELETE", "/api/users/{name}", ADMINISTRATOR, users.delete_user),
    ("GET", "/api/users/{name}/permissions", ADMINISTRATOR, permissions.user_permissions),
    (
        "GET",
        "/api/users/{name}/topic-permissions",
        ADMINISTRATOR,
        permissions.user_topic_permissions,
    ),
    ("GET", "/api/permissions", ADMINISTRATOR, permissions.permissions),
    ("GET", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, permissions.permission),
    ("PUT", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, permissions.put_permission),
    ("DELETE", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, permissions.delete_permission),
    ("GET", "/api/topic-permissions", ADMINISTRATOR, permissions.topic_permissions),
    ("GET", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, permissions.topic_permission),
    (
        "PUT",
        "/api/topic-permissions/{vhost}/{user}",
        ADMINISTRATOR,
        permissions.put_topic_permission,
    ),
    (
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}",
        ADMINISTRATOR,
        permissions.delete_topic_permission,
    ),
    (
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}/{exchange}",
        ADMINISTRATOR,
        permissions.delete_topic_permission,
    ),
    ("GET", "/api/topic-rules", ADMINISTRATOR, topic_rules.rules),
    ("GET", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, topic_rules.rules_of),
    ("PUT", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, topic_rules.put_rules),
    ("DELETE", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, topic_rules.delete_rules),
    ("GET", "/api/topic-readers/{vhost}", ADMINISTRATOR, readers.readers),
    ("GET", "/api/roles", ADMINISTRATOR, roles.roles),
    ("GET", "/api/roles/{name}", ADMINISTRATOR, roles.role),
    ("PUT", "/api/roles/{name}", ADMINISTRATOR, roles.put_role),
    ("DELETE", "/api/roles/{name}", ADMINISTRATOR, roles.delete_role),
    ("GET", "/api/exchanges", MANAGEMENT, topology.exchanges),
    ("GET", "/api/exchanges/{vhost}", MANAGEMENT, topology.exchanges),
    ("GET", "/api/exchanges/{vhost}/{name}", MANAGEMENT, topology.exchange),
    ("PUT", "/api/exchanges/{vhost}/{name}", MANAGEMENT, topology.put_exchange),
    ("DELETE", "/api/exchanges/{vhost}/{name}", MANAGEMENT, topology.delete_exchange),
    ("POST", "/api/exchanges/{vhost}/{name}/publish", MANAGEMENT, messages.publish),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, bindings.exchange_source),
    (
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        MANAGEMENT,
        bindings.exchange_destination,
    ),
    ("GET", "/api/queues", MANAGEMENT, topology.queues),
    ("GET", "/api/queues/{vhost}", MANAGEMENT, topology.queues),
    ("GET", "/api/queues/{vhost}/{name}", MANAGEMENT, topology.queue),
    ("PUT", "/api/queues/{vhost}/{name}", MANAGEMENT, topology.put_queue),
    ("DELETE", "/api/queues/{vhost}/{name}", MANAGEMENT, topology.delete_queue),
    ("DELETE", "/api/queues/{vhost}/{name}/contents", MANAGEMENT, topology.purge_queue),
    ("POST", "/api/queues/{vhost}/{name}/get", MANAGEMENT, messages.get),
    ("GET", "/api/queues/{vhost}/{name}/messages", MANAGEMENT, peeking.peek),
    ("PUT", "/api/queues/{vhost}/{name}/pause", MANAGEMENT, topology.pause_queue),
    ("DELETE", "/api/queues/{vhost}/{name}/pause", MANAGEMENT, topology.resume_queue),
    ("POST", "/api/queues/{vhost}/{name}/move", MANAGEMENT, moving.move),
    ("POST", "/api/queues/{vhost}/{name}/redrive", MANAGEMENT, moving.redrive),
    ("GET", "/api/moves", MANAGEMENT, moving.moves),
    ("GET", "/api/moves/{number}", MANAGEMENT, moving.one_move),
    ("DELETE", "/api/moves/{number}", MANAGEMENT, moving.cancel),
    ("GET", "/api/queues/{vhost}/{name}/bindings", MANAGEMENT, bindings.queue_bindings),
    ("GET", "/api/bindings", MANAGEMENT, bindings.bindings),
    ("GET", "/api/bindings/{vhost}", MANAGEMENT, bindings.bindings),
    *[
        route
        for path in _BETWEEN
        for route in (
            ("GET", path, MANAGEMENT, bindings.bindings_between),
            ("POST", path, MANAGEMENT, bindings.post_binding),
            ("GET", path + "/{properties}", MANAGEMENT, bindings.binding),
            ("DELETE", path + "/{properties}", MANAGEMENT, bindings.delete_binding),
        )
    ],
    ("GET", "/api/retained/{vhost}", MANAGEMENT, retaining.retained),
    ("GET", "/api/retained/{vhost}/count", MANAGEMENT, retaining.count),
    ("DELETE", "/api/retained/{vhost}", MANAGEMENT, retaining.clear),
    ("GET", "/api/route", MANAGEMENT, routing.route),
    ("POST", "/api/route/try", MONITORING, routing.try_changes),
    ("GET", "/api/policies", MANAGEMENT, policies.policies),
    ("GET", "/api/policies/{vhost}", MANAGEMENT, policies.policies),
    ("GET", "/api/policies/{vhost}/{name}", MANAGEMENT, policies.policy),
    ("PUT", "/api/policies/{vhost}/{name}", POLICYMAKER, policies.put_policy),
    ("DELETE", "/api/policies/{vhost}/{name}", POLICYMAKER, policies.delete_policy),
    ("GET", "/api/operator-policies", MANAGEMENT, parameters.operator_policies),
    ("GET", "/api/operator-policies/{vhost}", MANAGEMENT, parameters.operator_policies),
    ("GET", "/api/operator-policies/{vhost}/{name}", MANAGEMENT, parameters.operator_policy),
    ("PUT", "/api/operator-policies/{vhost}/{name}", ADMINISTRATOR, parameters.put_operator_policy),
    (
        "DELETE",
        "/api/operator-policies/{vhost}/{name}",
        ADMINISTRATOR,
        parameters.delete_operator_policy,
    ),
    ("GET", "/api/parameters", POLICYMAKER, parameters.parameters),
    ("GET", "/api/parameters/{component}", POLICYMAKER, parameters.parameters),
    ("GET", "/api/parameters/{component}/{vhost}", POLICYMAKER, parameters.parameters),
    *[
        (method, "/api/parameters/{component}/{vhost}/{name}", POLICYMAKER, answer)
        for method, answer in (
            ("GET", parameters.parameter),
            ("PUT", parameters.put_parameter),
            ("DELETE", parameters.delete_parameter),
        )
    ],
    ("GET", "/api/global-parameters", POLICYMAKER, parameters.global_parameters),
    ("GET", "/api/global-parameters/{name}", POLICYMAKER, parameters.global_parameter),
    ("PUT", "/api/global-parameters/{name}", ADMINISTRATOR, parameters.put_global_parameter),
    ("DELETE", "/api/global-parameters/{name}", ADMINISTRATOR, parameters.delete_global_parameter),
    ("GET", "/api/vhost-limits", MANAGEMENT, limits.vhost_limits),
    ("GET", "/api/vhost-limits/{vhost}", MANAGEMENT, limits.vhost_limits),
    ("PUT", "/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.put_vhost_limit),
    ("DELETE", "/api/vhost-limits/{vhost}/{name}", ADMINISTRATOR, limits.delete_vhost_limit),
    ("GET", "/api/user-limits", MANAGEMENT, limits.user_limits),
    ("GET", "/api/user-limits/{user}", MANAGEMENT, limits.user_limits),
    ("PUT", "/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.put_user_limit),
    ("DELETE", "/api/user-limits/{user}/{name}", ADMINISTRATOR, limits.delete_user_limit),
    ("GET", "/api/connections", MANAGEMENT, connections.connections),
    ("GET", "/api/connections/{name}", MANAGEMENT, connections.connection),
    ("DELETE", "/api/connections/{name}", MANAGEMENT, connections.delete_connection),
    ("GET", "/api/connections/{name}/channels", MANAGEMENT, connections.channels),
    ("GET", "/api/connections/username/{name}", MANAGEMENT, connections.user_connections),
    (
        "DELETE",
        "/api/connections/username/{name}",
        ADMINISTRATOR,
        connections.delete_user_connections,
    ),
    ("GET", "/api/channels", MANAGEMENT, connections.channels),
    ("GET", "/api/channels/{name}", MANAGEMENT, connections.channel),
    ("GET", "/api/consumers", MANAGEMENT, connections.consumers),
    ("GET", "/api/consumers/{vhost}", MANAGEMENT, connections.consumers),
    ("GET", "/api/definitions", ADMINISTRATOR, definitions.export),
    ("POST", "/api/definitions", ADMINISTRATOR, definitions.import_),
    ("GET", "/api/definitions/{vhost}", ADMINISTRATOR, definitions.export_vhost),
    ("POST", "/api/definitions/{vhost}", ADMINISTRATOR, definitions.import_vhost),
    ("GET", "/api/streams", ANY_USER, streaming.list_streams),
    ("GET", "/api/streams/archive", MONITORING, streaming.show_archive),
    ("GET", "/api/streams/segments", ANY_USER, streaming.list_segments),
    ("GET", "/api/streams/segment", ANY_USER, streaming.read_segment),
    ("GET", "/api/streams/topics", ANY_USER, streaming.read_topics),
    ("GET", "/api/streams/rows", ANY_USER, stream_rows.rows),
    ("POST", "/api/streams/replay", MANAGEMENT, stream_rows.replay),
    ("GET", "/api/health/checks/alarms", MANAGEMENT, health.alarms),
    ("GET", "/api/health/checks/local-alarms", MANAGEMENT, health.alarms),
    ("GET", "/api/health/checks/virtual-hosts", MANAGEMENT, health.virtual_hosts),
    ("GET", "/api/health/checks/port-listener/{port}", MANAGEMENT, health.port_listener),
    (
        "GET",
        "/api/health/checks/protocol-listener/{protocol}",
        MANAGEMENT,
        health.protocol_listener,
    ),
    (
        "GET",
        "/api/health/checks/certificate-expiration/{within}/{unit}",
        MANAGEMENT,
        health.certificates,
    ),
    ("GET", "/api/health/checks/is-in-service", MANAGEMENT, health.ready),
    ("GET", "/api/health/checks/ready-to-serve-clients", MANAGEMENT, health.ready),
    *[
        ("GET", f"/api/health/checks/{name}", MANAGEMENT, health.always)
        for name in (
            "node-is-mirror-sync-critical",
            "node-is-quorum-critical",
            "below-node-connection-limit",
            "metadata-store/initialized",
        )
    ],
    ("GET", "/api/healthchecks/node", MANAGEMENT, health.alarms),
    ("GET", "/api/aliveness-test/{vhost}", MANAGEMENT, health.aliveness),
    ("GET", "/api/trellis/now", MONITORING, page.now),
    ("GET", "/api/trellis/page/session", ANY_USER, page.user),
    ("POST", "/api/trellis/page/session", ANY_USER, page.open_session),
    ("DELETE", "/api/trellis/page/session", ANY_USER, page.close_session),
    ("GET", "/api/consequences/policies/{vhost}/{name}", POLICYMAKER, consequences.policy),
    ("POST", "/api/consequences/policies/{vhost}/{name}", POLICYMAKER, consequences.new_policy),
    (
        "GET",
        "/api/consequences/permissions/{vhost}/{user}",
        ADMINISTRATOR,
        consequences.permission,
    ),
    (
        "POST",
        "/api/consequences/permissions/{vhost}/{user}",
        ADMINISTRATOR,
        right_consequences.new_permission,
    ),
    ("GET", "/api/consequences/roles/{name}", ADMINISTRATOR, consequences.role),
    ("POST", "/api/consequences/roles/{name}", ADMINISTRATOR, right_consequences.new_role),
    ("POST", "/api/consequences/users/{name}", ADMINISTRATOR, right_consequences.new_user_role),
    ("GET", "/api/consequences/vhosts/{name}", ADMINISTRATOR, consequences.vhost),
    ("GET", "/api/why/queues/{vhost}/{name}", MANAGEMENT, diagnosis.queue),
    ("GET", "/api/why/clients/{name}", MONITORING, diagnosis.client),
    ("GET", "/api/why/topics/{vhost}/{topic}", MANAGEMENT, diagnosis.topic),
    ("POST", "/api/trellis/cluster/switch", ADMINISTRATOR, extensions.switch),
    ("GET", "/api/trellis/{kind}", ANY_USER, extensions.rows),
    ("GET", "/api/trellis/delayed", ANY_USER, extensions.delayed),
    ("GET", "/api/trellis/traces/{vhost}", ADMINISTRATOR, tracing.traces),
    ("POST", "/api/trellis/traces/{vhost}", ADMINISTRATOR, tracing.begin),
    ("GET", "/api/trellis/traces/{vhost}/{trace}", ADMINISTRATOR, tracing.events),
    ("DELETE", "/api/trellis/traces/{vhost}/{trace}", ADMINISTRATOR, tracing.end),
    ("DELETE", "/api/trellis/delayed", ADMINISTRATOR, extensions.cancel),
    (
        "DELETE",
        "/api/trellis/sessions/{vhost}/{client_id}",
        ADMINISTRATOR,
        extensions.delete_session,
    ),
]

#: Routes whose body is a definitions document, which comes in slices.
DOCUMENTS: Final = frozenset({"/api/definitions", "/api/definitions/{vhost}"})


def route_infos() -> list[contract.RouteInfo]:
    """Return the routes as the gateway needs them, in the order of ROUTES."""
    return [
        contract.RouteInfo(
            method,
            path,
            (answer.__doc__ or "").partition("\n")[0],
            sorted(tags),
            contract.DOCUMENT if method == "POST" and path in DOCUMENTS else contract.SMALL_BODY,
        )
        for method, path, tags, answer in ROUTES
    ]
