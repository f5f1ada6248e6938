"""Enhanced authentication of MQTT 5: AUTH packets between client and authenticator (section 4.12).

CONNECT (method, data) --> AuthConversation --> AUTH (data) --> ... --> verdict: CONNACK
AUTH Re-authenticate   --> AuthConversation --> AUTH (data) --> ... --> verdict: AUTH (success)
"""

from __future__ import annotations

from collections.abc import Callable

from broker.access.identity import (
    AuthConversation,
    Authenticator,
    AuthStep,
    Credentials,
    Verdict,
)
from protocols.mqtt.codec.packets import MalformedPacket
from protocols.mqtt.codec.packets5 import ReasonPacket, auth5
from protocols.mqtt.codec.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from protocols.mqtt.codec.reasons import CONTINUE_AUTHENTICATION, PROTOCOL_ERROR, REAUTHENTICATE
from protocols.mqtt.connection.connection import MqttConnection


class EnhancedAuthentication:
    """The enhanced authentication of one client, by the method that the client's CONNECT names."""

    def __init__(
        self,
        connection: MqttConnection,
        authenticator: Authenticator,
        method: str,
        credentials: Credentials,
    ) -> None:
        self.method = method
        self._connection = connection
        self._authenticator = authenticator
        self._credentials = credentials
        #: The unfinished conversation with the client, and the function that is called with the
        #: verdict.
        self._conversation: AuthConversation | None = None
        self._decide: Callable[[Verdict, bytes], None] | None = None

    def start(self, data: bytes, decide: Callable[[Verdict, bytes], None]) -> bool:
        """Begin the authentication with the client's first data.

        `decide` is called with the verdict and the last data for the client. Return False if the
        authentication method is not supported.
        """
        self._conversation = self._authenticator.start_conversation(self.method, self._credentials)
        if self._conversation is None:
            return False
        self._respond(self._conversation, data, decide)
        return True

    def on_auth(
        self, packet: ReasonPacket, connected: bool, decide: Callable[[Verdict, bytes], None]
    ) -> None:
        """Handle an AUTH packet: continue the authentication, or begin a re-authentication.

        `connected` is True after the CONNACK. `decide` is called with the verdict and the last data
        for the client. Raises MalformedPacket if the packet names another method than
        the CONNECT, or does not fit the state of the authentication.
        """
        if packet.properties.text(AUTHENTICATION_METHOD) != self.method:
            raise MalformedPacket(
                "AUTH must name the same authentication method as CONNECT", code=PROTOCOL_ERROR
            )  # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
        if packet.code == REAUTHENTICATE and connected and self._conversation is None:
            self._conversation = self._authenticator.start_conversation(
                self.method, self._credentials
            )
        elif packet.code != CONTINUE_AUTHENTICATION:
            raise MalformedPacket(
                "re-authentication is not allowed before the CONNACK or during another one",
                code=PROTOCOL_ERROR,
            )
        if self._conversation is None:
            raise MalformedPacket(
                "AUTH is not allowed: no authentication is in progress", code=PROTOCOL_ERROR
            )
        self._respond(
            self._conversation, packet.properties.binary(AUTHENTICATION_DATA) or b"", decide
        )

    def _respond(
        self,
        conversation: AuthConversation,
        data: bytes,
        decide: Callable[[Verdict, bytes], None],
    ) -> None:
        self._decide = decide
        self._connection.stall()
        conversation.respond(data, self._on_step)

    def _on_step(self, step: AuthStep) -> None:
        """Send the authenticator's data to the client, or pass its verdict on to `decide`."""
        connection, decide = self._connection, self._decide
        if connection.finished or decide is None:
            return
        if step.verdict is None:
            connection.out.write(auth5(CONTINUE_AUTHENTICATION, self.method, step.data))
            connection.resume_input()
            return
        self._conversation = None
        self._decide = None
        decide(step.verdict, step.data)

    def close(self) -> None:
        """Drop the conversation, because the connection has ended."""
        self._conversation = None
        self._decide = None
