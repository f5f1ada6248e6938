"""The table of routes: what is answered, and to whom.

ANYBODY         who may log in                                          what `trellis list` asks,
cut down to what they may enter MANAGEMENT      tag management, or one of the others
their virtual hosts, their own connections POLICYMAKER     tag policymaker or administrator
policies MONITORING      tag monitoring or administrator                         everything is seen
ADMINISTRATOR   tag administrator                                       users, permissions, virtual
hosts, definitions
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from broker.access.identity import Credentials, Identity, Verdict
from broker.errors import BrokerError
from trellis.auth.jwt import token_of
from trellis.http.management import connections as live
from trellis.http.management import definitions as documents
from trellis.http.management import extensions as ours
from trellis.http.management import health, overview, streaming
from trellis.http.management import topology as names
from trellis.http.management import users as people
from trellis.http.management.answers import (
    JSON,
    ApiBackend,
    ApiRefusal,
    Call,
    Empty,
    Listing,
    encode,
    refusal_of,
    refuse,
)
from trellis.http.management.paging import render_page
from trellis.http.routes import HttpRouter
from trellis.http.server import Handler, Request, Response

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
    ("GET", "/api/nodes", MONITORING, overview.nodes),
    ("GET", "/api/nodes/{name}", MONITORING, overview.node),
    ("GET", "/api/whoami", MANAGEMENT, overview.whoami),
    ("GET", "/api/auth/attempts/{node}", MONITORING, overview.login_attempts),
    *[
        ("GET", f"/api/{name}", MANAGEMENT, overview.empty_list)
        for name in (
            "extensions",
            "parameters",
            "global-parameters",
            "operator-policies",
            "vhost-limits",
            "user-limits",
            "feature-flags",
            "deprecated-features",
            "federation-links",
            "shovels",
        )
    ],
    ("GET", "/api/vhosts", MANAGEMENT, names.vhosts),
    ("GET", "/api/vhosts/{name}", MANAGEMENT, names.vhost),
    ("PUT", "/api/vhosts/{name}", ADMINISTRATOR, names.put_vhost),
    ("DELETE", "/api/vhosts/{name}", ADMINISTRATOR, names.delete_vhost),
    ("GET", "/api/vhosts/{name}/permissions", ADMINISTRATOR, people.vhost_permissions),
    ("GET", "/api/vhosts/{name}/topic-permissions", ADMINISTRATOR, people.vhost_topic_permissions),
    ("GET", "/api/vhosts/{name}/connections", MANAGEMENT, live.connections),
    ("GET", "/api/vhosts/{name}/channels", MANAGEMENT, live.channels),
    ("GET", "/api/users", ADMINISTRATOR, people.users),
    ("GET", "/api/users/without-permissions", ADMINISTRATOR, people.users_without_permissions),
    ("POST", "/api/users/bulk-delete", ADMINISTRATOR, people.bulk_delete),
    ("GET", "/api/users/{name}", ADMINISTRATOR, people.user),
    ("PUT", "/api/users/{name}", ADMINISTRATOR, people.put_user),
    ("DELETE", "/api/users/{name}", ADMINISTRATOR, people.delete_user),
    ("GET", "/api/users/{name}/permissions", ADMINISTRATOR, people.user_permissions),
    ("GET", "/api/users/{name}/topic-permissions", ADMINISTRATOR, people.user_topic_permissions),
    ("GET", "/api/permissions", ADMINISTRATOR, people.permissions),
    ("GET", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, people.permission),
    ("PUT", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, people.put_permission),
    ("DELETE", "/api/permissions/{vhost}/{user}", ADMINISTRATOR, people.delete_permission),
    ("GET", "/api/topic-permissions", ADMINISTRATOR, people.topic_permissions),
    ("GET", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, people.topic_permission),
    ("PUT", "/api/topic-permissions/{vhost}/{user}", ADMINISTRATOR, people.put_topic_permission),
    (
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}",
        ADMINISTRATOR,
        people.delete_topic_permission,
    ),
    (
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}/{exchange}",
        ADMINISTRATOR,
        people.delete_topic_permission,
    ),
    ("GET", "/api/topic-rules", ADMINISTRATOR, people.rules),
    ("GET", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, people.rules_of),
    ("PUT", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, people.put_rules),
    ("DELETE", "/api/topic-rules/{vhost}/{user}", ADMINISTRATOR, people.delete_rules),
    ("GET", "/api/exchanges", MANAGEMENT, names.exchanges),
    ("GET", "/api/exchanges/{vhost}", MANAGEMENT, names.exchanges),
    ("GET", "/api/exchanges/{vhost}/{name}", MANAGEMENT, names.exchange),
    ("PUT", "/api/exchanges/{vhost}/{name}", MANAGEMENT, names.put_exchange),
    ("DELETE", "/api/exchanges/{vhost}/{name}", MANAGEMENT, names.delete_exchange),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, names.exchange_source),
    (
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        MANAGEMENT,
        names.exchange_destination,
    ),
    ("GET", "/api/queues", MANAGEMENT, names.queues),
    ("GET", "/api/queues/{vhost}", MANAGEMENT, names.queues),
    ("GET", "/api/queues/{vhost}/{name}", MANAGEMENT, names.queue),
    ("PUT", "/api/queues/{vhost}/{name}", MANAGEMENT, names.put_queue),
    ("DELETE", "/api/queues/{vhost}/{name}", MANAGEMENT, names.delete_queue),
    ("DELETE", "/api/queues/{vhost}/{name}/contents", MANAGEMENT, names.purge_queue),
    ("GET", "/api/queues/{vhost}/{name}/bindings", MANAGEMENT, names.queue_bindings),
    ("GET", "/api/bindings", MANAGEMENT, names.bindings),
    ("GET", "/api/bindings/{vhost}", MANAGEMENT, names.bindings),
    *[
        route
        for path in _BETWEEN
        for route in (
            ("GET", path, MANAGEMENT, names.bindings_between),
            ("POST", path, MANAGEMENT, names.post_binding),
            ("GET", path + "/{properties}", MANAGEMENT, names.binding),
            ("DELETE", path + "/{properties}", MANAGEMENT, names.delete_binding),
        )
    ],
    ("GET", "/api/policies", MANAGEMENT, names.policies),
    ("GET", "/api/policies/{vhost}", MANAGEMENT, names.policies),
    ("GET", "/api/policies/{vhost}/{name}", MANAGEMENT, names.policy),
    ("PUT", "/api/policies/{vhost}/{name}", POLICYMAKER, names.put_policy),
    ("DELETE", "/api/policies/{vhost}/{name}", POLICYMAKER, names.delete_policy),
    ("GET", "/api/connections", MANAGEMENT, live.connections),
    ("GET", "/api/connections/{name}", MANAGEMENT, live.connection),
    ("DELETE", "/api/connections/{name}", MANAGEMENT, live.delete_connection),
    ("GET", "/api/connections/{name}/channels", MANAGEMENT, live.channels),
    ("GET", "/api/connections/username/{name}", MANAGEMENT, live.user_connections),
    ("DELETE", "/api/connections/username/{name}", ADMINISTRATOR, live.delete_user_connections),
    ("GET", "/api/channels", MANAGEMENT, live.channels),
    ("GET", "/api/channels/{name}", MANAGEMENT, live.channel),
    ("GET", "/api/consumers", MANAGEMENT, live.consumers),
    ("GET", "/api/consumers/{vhost}", MANAGEMENT, live.consumers),
    ("GET", "/api/definitions", ADMINISTRATOR, documents.export),
    ("POST", "/api/definitions", ADMINISTRATOR, documents.import_),
    ("GET", "/api/definitions/{vhost}", ADMINISTRATOR, documents.export_vhost),
    ("POST", "/api/definitions/{vhost}", ADMINISTRATOR, documents.import_vhost),
    ("GET", "/api/streams", ANY_USER, streaming.list_streams),
    ("GET", "/api/streams/segments", ANY_USER, streaming.list_segments),
    ("GET", "/api/streams/segment", ANY_USER, streaming.read_segment),
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
    ("GET", "/api/trellis/{kind}", ANY_USER, ours.rows),
    ("DELETE", "/api/trellis/delayed", ADMINISTRATOR, ours.cancel),
]


class ApiRouter(HttpRouter):
    """Errors are JSON here, and a slash at the end says nothing (Flower asks for /api/queues//)."""

    def find(self, method: str, path: str) -> tuple[Handler, list[str]] | Response:
        return super().find(method, path.rstrip("/") or "/")

    def not_found(self, path: str) -> Response:
        return refuse(404, "Object Not Found", "no such page; docs/http-api.md lists them")

    def method_not_allowed(self, method: str, allowed: str) -> Response:
        return Response(
            405,
            encode({"error": "method_not_allowed", "reason": f"only {allowed} here"}),
            JSON,
            allow=allowed,
        )


def api_routes(backend: ApiBackend) -> HttpRouter:
    """Return the routes of the http port."""
    router = ApiRouter()
    for method, path, tags, answer in ROUTES:
        router.add(method, path, _authorized(backend, tags, answer))
    return router


def _authorized(backend: ApiBackend, tags: frozenset[str], answer: Answer) -> Handler:
    async def ask(request: Request) -> Response:
        if request.cross_origin and request.method not in ("GET", "HEAD"):
            return refuse(403, "not_authorised", "a page of another site changes nothing here")
        verdict = await authenticate(backend, request)
        identity = verdict.identity
        if identity is None:
            if verdict.busy:
                return refuse(503, "busy", verdict.reason)
            return refuse(401, "not_authorised", verdict.reason, challenge=True)
        if tags and not tags & _tags(identity):
            needed = "administrator" if tags == ADMINISTRATOR else " or ".join(sorted(tags))
            return refuse(
                403, "not_authorised", f"user '{identity.name}' is no {needed}: that needs a tag"
            )
        try:
            said = await answer(Call(backend, request, identity))
            if isinstance(said, Listing):
                return Response(200, await render_page(said, request.query), JSON)
        except (ApiRefusal, BrokerError, ValueError, TimeoutError) as error:
            return refusal_of(error)
        if isinstance(said, Response):
            return said
        if isinstance(said, Empty):
            return Response(said.status, b"", JSON)
        return Response(
            200, await asyncio.get_running_loop().run_in_executor(None, encode, said), JSON
        )

    return ask


def _tags(identity: Identity) -> set[str]:
    return {*identity.tags, "administrator"} if identity.administrator else set(identity.tags)


async def authenticate(backend: ApiBackend, request: Request) -> Verdict:
    """Who asks, by a password or a token."""
    if request.user is None and not request.token:
        return Verdict(None, "a user and a password are needed")
    node = backend.node
    answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def heard(verdict: Verdict) -> None:
        if not answer.done():
            answer.set_result(verdict)

    credentials = Credentials(
        request.user or "", request.token or request.password, "/", request.address, request.local
    )
    if node.tokens is not None and token_of(credentials):
        heard(node.tokens.judge(token_of(credentials), credentials))
    else:
        node.accounts.authenticate(credentials, heard)
    verdict = await answer
    outcome = "accepted" if verdict.identity is not None else "busy" if verdict.busy else "refused"
    logins = backend.counters.logins
    logins[outcome] = logins.get(outcome, 0) + 1
    return verdict
