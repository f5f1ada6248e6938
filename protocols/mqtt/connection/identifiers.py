"""Decides which users may connect with a client identifier.

A session belongs to the user that opened it, and a rule can reserve a client identifier for a user.
All anonymous clients count as one user.
"""

from __future__ import annotations

from broker.access.identity import Identity
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.connection.service import MqttService


def identifier_refusal(
    service: MqttService, vhost: VirtualHost, client_id: str, identity: Identity, user: Identity
) -> str:
    """Return the reason why a user may not connect with a client identifier; "" if the user may
    connect.

    `user` is the identity that the login returned. `identity` has the permissions of the same user
    in the virtual host. The reason names the owner of the client identifier, so the caller writes
    it to the log and does not send it to the client.
    """
    if not client_id:
        return ""
    name = identity.name
    owners = service.broker.authenticator.reserved_for(vhost.name, client_id)
    reserved = not user.anonymous and name in owners
    if owners and not reserved:
        return (
            f"the client identifier is reserved for user '{owners[0]}': log in as this user, or "
            "choose another identifier"
        )
    session = service.sessions.find(vhost, client_id)
    if session is None or session.belongs_to(name, user.anonymous):
        return ""
    if reserved and (session.anonymous or session.user not in owners):
        # The session was opened before the rule was made, so the caller ends the session.
        service.log(
            "session_ended",
            {
                "user": session.user,
                "vhost": vhost.name,
                "client_id": client_id,
                "note": f"the client identifier is reserved for user '{name}'",
            },
        )
        return ""
    whose = "anonymous clients" if session.anonymous else f"user '{session.user}'"
    return (
        f"the client identifier belongs to a session of {whose}: end the session with "
        "`trellis sessions delete`, or reserve the identifier with a rule"
    )
