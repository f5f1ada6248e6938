"""The version of MQTT that a bridge speaks to a broker, and the change to an older version."""

from __future__ import annotations

from typing import Final

from trellis.settings.bridge import AUTO, MQTT5, MQTT311

#: Number of connections without an answer to CONNECT of MQTT 5, before a bridge with the setting
#: AUTO tries MQTT 3.1.1. There can be other reasons than the version: the broker may have been
#: stopped at this moment, or be unreachable behind a proxy.
UNANSWERED_MAX: Final = 3
#: The reason code of CONNACK for a version that the broker does not support. (Return code 1 of MQTT
#: 3.1.1, section 3.2.2.3, which paho maps to reason code 132 of MQTT 5, section 3.2.2.2.)
UNSUPPORTED: Final = 132


class ProtocolChoice:
    """Chooses the version of MQTT for the next attempt to connect to one broker.

    With the setting AUTO, the version is MQTT 5 until the broker refuses MQTT 5. The version is
    then MQTT 3.1.1 until the broker refuses MQTT 3.1.1, or the process ends. If
    UNANSWERED_MAX attempts with MQTT 5 get no answer to CONNECT, the next attempt has MQTT 3.1.1.
    If this attempt gets no answer, or its connection is lost, the version is MQTT 5 again, because
    the broker may only have been unreachable.
    """

    def __init__(self, setting: str) -> None:
        """Begin with the version that the setting `remote_protocol` names; with MQTT 5 for AUTO."""
        self._automatic = setting == AUTO
        #: The version for the next attempt, MQTT5 or MQTT311.
        self.version = MQTT5 if self._automatic else setting
        #: True if the broker has accepted this version.
        self._accepted = False
        #: True if the broker has answered that it does not know MQTT 5.
        self._refused = False
        self._unanswered = 0

    def on_accepted(self) -> None:
        """Keep the version for the next attempts, because the broker has accepted the version."""
        self._accepted = True
        self._unanswered = 0

    def on_refused(self) -> str:
        """Choose the next version, because the broker has refused the present one.

        Return the end of the error text: the version that the bridge tries next, or the setting
        that the operator should change.
        """
        refused, self._accepted = self.version, False
        self._refused = refused == MQTT5
        if self._automatic:
            self.version = MQTT311 if refused == MQTT5 else MQTT5
            return f"the bridge tries MQTT {self.version} next"
        return f'set remote_protocol to "{AUTO}", or to the version that the broker speaks'

    def on_lost(self) -> None:
        """Choose the next version after the loss of a connection that the broker had accepted."""
        if self._automatic and self.version == MQTT311 and not self._refused:
            self.version, self._accepted = MQTT5, False
            self._unanswered = UNANSWERED_MAX - 1

    def on_unanswered(self) -> None:
        """Choose the MQTT version of the next attempt, after CONNECT got no answer.

        Some brokers close the connection, or do not answer, if they do not know the version.
        """
        if not self._automatic or self._accepted:
            return
        self._unanswered += 1
        if self.version == MQTT311 or self._unanswered >= UNANSWERED_MAX:
            self.version = MQTT5 if self.version == MQTT311 else MQTT311
            self._unanswered = 0
