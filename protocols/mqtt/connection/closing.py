"""Closing an MQTT connection: four verbs, and the effect of each in each state.

    close       the broker ends the connection: an operator, a limit, a take-over, a shutdown
    abort       the connection ends without a reason for the client: a timeout, a full send buffer
    reject      the client's last packet cannot be accepted: a failed login, a protocol error
    on_closed   the client has closed the connection, or its transport is lost

    state              close sends   abort sends   reject sends   on_closed sends   each releases
    AWAITING_CONNECT   nothing       nothing       CONNACK        nothing           the login
    AUTHENTICATING     nothing       nothing       CONNACK        nothing           the login
    OPENING            nothing       nothing       CONNACK        nothing           the session
    CONNECTED          DISCONNECT    nothing       DISCONNECT     nothing           the session
    CLOSED             nothing       nothing       nothing        nothing           nothing

CLOSING is this table. The verbs have no effect on a closed connection, so only the reason that the
first verb gave is counted.
"""

from __future__ import annotations

from typing import Final

from protocols.end_reasons import EXPELLED, INTERNAL_ERROR, SHUTDOWN, TOO_FAST
from protocols.mqtt.codec.connect import LEVEL_5
from protocols.mqtt.codec.packets import connack
from protocols.mqtt.codec.packets5 import connack5, disconnect5
from protocols.mqtt.codec.properties import Properties5, reason_string
from protocols.mqtt.codec.reasons import (
    ADMINISTRATIVE_ACTION,
    IMPLEMENTATION_SPECIFIC,
    MESSAGE_RATE_TOO_HIGH,
    SERVER_SHUTTING_DOWN,
)

#: States of a connection. AWAITING_CONNECT: no CONNECT was read. AUTHENTICATING: the
#: authenticator's verdict is missing. OPENING: the session is attached, and the CONNACK waits for
#: the store. CONNECTED: the CONNACK is sent. CLOSED: the connection has ended.
AWAITING_CONNECT: Final = 0
AUTHENTICATING: Final = 1
OPENING: Final = 2
CONNECTED: Final = 3
CLOSED: Final = 4

#: Packets that a verb sends. A DISCONNECT from the broker exists only in level 5. At an older
#: level, a CONNACK is sent only if one of its return codes fits the reason.
NO_PACKET: Final = 0
CONNACK_PACKET: Final = 1
DISCONNECT_PACKET: Final = 2

#: The parts that a connection releases when it has ended. RELEASE_LOGIN: its unfinished login.
#: RELEASE_SESSION: its session, its publish context and its will.
RELEASE_NOTHING: Final = 0
RELEASE_LOGIN: Final = 1
RELEASE_SESSION: Final = 2


class ClosingRow:
    """The packets and actions with which a connection ends in one of its states.

    `close` and `reject` are the packets that the methods of these names send. `release` is the part
    of the connection that every end releases, such as its session. The methods `abort` and
    `on_closed` send no packet.
    """

    def __init__(self, close: int, reject: int, release: int) -> None:
        self.close = close
        self.reject = reject
        self.release = release


CLOSING: Final = {
    AWAITING_CONNECT: ClosingRow(NO_PACKET, CONNACK_PACKET, RELEASE_LOGIN),
    AUTHENTICATING: ClosingRow(NO_PACKET, CONNACK_PACKET, RELEASE_LOGIN),
    OPENING: ClosingRow(NO_PACKET, CONNACK_PACKET, RELEASE_SESSION),
    CONNECTED: ClosingRow(DISCONNECT_PACKET, DISCONNECT_PACKET, RELEASE_SESSION),
    CLOSED: ClosingRow(NO_PACKET, NO_PACKET, RELEASE_NOTHING),
}

#: DISCONNECT reason codes of level 5 for the reasons with which `Connection.close` is called.
CLOSE_CODES: Final = {
    EXPELLED: ADMINISTRATIVE_ACTION,
    TOO_FAST: MESSAGE_RATE_TOO_HIGH,
    SHUTDOWN: SERVER_SHUTTING_DOWN,
    INTERNAL_ERROR: IMPLEMENTATION_SPECIFIC,
}


def last_packet(
    packet: int, level: int, return_code: int, reason_code: int, text: str, size_max: int
) -> bytes:
    """Return the packet with the reason for the end of a client's connection; b"" for no packet.

    `packet` is NO_PACKET, CONNACK_PACKET or DISCONNECT_PACKET. `return_code` is for a CONNACK of
    level 3 or 4; 0 if no return code fits. `reason_code` and `text` are for level 5.

    `size_max` is the client's Maximum Packet Size in bytes; 0 is no limit. Return b"" for a CONNACK
    of level 5 above this size [MQTT-3.1.2-24]. A DISCONNECT above this size loses its text; return
    b"" if the DISCONNECT without the text is still too large [MQTT-3.14.2-3].
    """
    if packet == CONNACK_PACKET:
        if level == LEVEL_5:
            refusal = connack5(False, reason_code, Properties5())
            return refusal if size_max == 0 or len(refusal) <= size_max else b""
        return connack(False, return_code) if return_code else b""
    if packet == DISCONNECT_PACKET and level == LEVEL_5:
        full = disconnect5(reason_code, reason_string(text) if text else None)
        for form in (full, disconnect5(reason_code)):
            if size_max == 0 or len(form) <= size_max:
                return form
    return b""
