"""Closing: the ways in which a connection or a channel ends, and their actions in each state.

A connection ends through one of four verbs, which are methods of AmqpConnection:

    close       The broker ends the connection, and sends the reason: a protocol error, an operator,
                a lost permission, a rate limit, the shutdown.
    reject      The broker refuses a client that has not logged in.
    abort       The broker ends the connection without a reason for the client: after a timeout, or
                if the client reads nothing.
    on_closed   The client has closed the connection, or the transport is lost.

    state              close              reject                  abort     on_closed
    greeting           end                protocol header, end    end       end
    start ... open     connection.close   403 or nothing [1]      end       end
    running            connection.close   -                       end       end
    closing            nothing            nothing                 end       end
    closed             nothing            nothing                 nothing   nothing

    connection.close   send connection.close, release all resources, enter `closing`, and end at the
                       client's connection.close-ok or after CLOSING_MS
    end                release all resources, enter `closed`; the transport closes once the output
                       is sent
    [1]                A client with the capability authentication_failure_close gets
                       connection.close with code 403. Another client gets nothing, because it would
                       take any answer for a failure of the broker: its connection enters `closing`,
                       and ends after REFUSAL_MS.

Every end is counted once, with the reason that the first verb gave:

    close       protocol_error, expelled, too_fast, shutdown, standby, internal_error
    reject      protocol_error (unknown protocol header), login_refused
    abort       handshake_timeout, heartbeat_timeout, too_much_before_login, reads_nothing,
                incomplete_message
    on_closed   client, lost, or a reason of the layers below (TLS, WebSocket)

A channel has three states: open (it is in ChannelTable.open), closing (its number is in
ChannelTable.closing until the client's channel.close-ok), and closed.

    state     close_channel                 client's channel.close    connection ends
    open      channel.close, -> closing     close-ok, -> closed       -> closed
    closing   nothing                       close-ok, stays           -> closed
    closed    nothing                       error 504                 nothing
"""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
from librt.strings import read_i32_be
from mypy_extensions import i64

from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.codec.frames import FRAME_END, METHOD, OVERHEAD, close_connection
from protocols.amqp.connection import states
from protocols.amqp.connection.handshake import GREETING
from protocols.amqp.errors import AmqpError
from protocols.end_reasons import EXPELLED, INTERNAL_ERROR, SHUTDOWN, STANDBY, TOO_FAST

#: Time for which a closing connection waits for connection.close-ok, in milliseconds.
CLOSING_MS: Final = 5_000
#: Time in milliseconds from a refused login to the end of the connection, if the client does not
#: understand a connection.close during the login.
REFUSAL_MS: Final = 3_000

#: The two verbs whose action depends on the state.
CLOSE: Final = "close"
REJECT: Final = "reject"

#: The actions of a verb.
NOTHING: Final = "nothing"
END: Final = "end"
SEND_CLOSE: Final = "send connection.close"
SEND_HEADER: Final = "send the protocol header and end"
SEND_REFUSAL: Final = "send connection.close 403, or nothing"

#: State -> action of `close`, action of `reject`. In every state but CLOSED, the action of `abort`
#: and `on_closed` is END.
_ACTIONS: Final = {
    states.GREETING: (END, SEND_HEADER),
    states.START: (SEND_CLOSE, SEND_REFUSAL),
    states.VERDICT: (SEND_CLOSE, SEND_REFUSAL),
    states.TUNE: (SEND_CLOSE, SEND_REFUSAL),
    states.OPEN: (SEND_CLOSE, SEND_REFUSAL),
    states.RUNNING: (SEND_CLOSE, NOTHING),
    states.CLOSING: (NOTHING, NOTHING),
    states.CLOSED: (NOTHING, NOTHING),
}

#: Reply codes for the reasons with which `Connection.close` is called.
_CLOSE_CODES: Final = {
    EXPELLED: 320,
    SHUTDOWN: 320,
    STANDBY: 320,
    TOO_FAST: 506,
    INTERNAL_ERROR: 541,
}
_START_OK: Final[i64] = 10 << 16 | 11
_CONNECTION_CLOSE: Final[i64] = 10 << 16 | 50
_CONNECTION_CLOSE_OK: Final[i64] = 10 << 16 | 51


def closing_error(reason: str, text: str) -> AmqpError:
    """Return the error with which the broker closes a connection.

    `reason` is a reason of end_reasons.py. `text` is the error's text; "" for a default text.
    """
    text = text or f"broker forced connection closure with reason '{reason}'"
    return AmqpError(_CLOSE_CODES[reason], text)


def action(state: str, verb: str) -> str:
    """Return the action of the method `close` or `reject` on a connection in this state.

    `verb` is CLOSE or REJECT. The result is the name of an action, such as SEND_CLOSE or END.
    """
    on_close, on_reject = _ACTIONS[state]
    return on_close if verb == CLOSE else on_reject


class Closing:
    """The part of a connection that closes the connection.

    Each method gets the connection as a parameter, so that the two objects form no reference cycle.
    """

    def __init__(self) -> None:
        #: True once the input cannot be divided into frames: all further input is ignored.
        self.unreadable = False

    def close(
        self, connection: ConnectionInterface, reason: str, error: AmqpError, method: i64
    ) -> None:
        """Close a connection with an error; the metrics count `reason`.

        `method` is the method that failed (class id << 16 | method id), or 0 if none did.
        """
        todo = action(connection.state, CLOSE)
        if todo == SEND_CLOSE:
            connection.out.write(close_connection(error, method))
            _enter_closing(connection, reason, CLOSING_MS)
            connection.release_resources()
            if connection.stalled:
                # The waiting input may contain the client's connection.close, so it is still read.
                connection.resume_input()
            connection.touch()
        elif todo == END:
            connection.abort(reason)
            connection.touch()

    def reject(
        self, connection: ConnectionInterface, reason: str, refusal: AmqpError | None
    ) -> None:
        """Refuse a client that has not logged in; the metrics count `reason`.

        `refusal` is the error that answers the client's connection.start-ok, or None if the client
        does not understand an error at this point.
        """
        todo = action(connection.state, REJECT)
        if todo == SEND_HEADER:
            connection.out.write(GREETING)
            connection.abort(reason)
        elif todo == SEND_REFUSAL and refusal is not None:
            self.close(connection, reason, refusal, _START_OK)
        elif todo == SEND_REFUSAL:
            _enter_closing(connection, reason, REFUSAL_MS)

    def fail_oversized(self, connection: ConnectionInterface, length: i64) -> None:
        """Close a connection, because a frame announces a payload of `length` bytes, above the
        limit.
        """
        limit, size = connection.frame_max, length & 0xFFFF_FFFF
        self.fail_framing(
            connection, f"a frame has a payload of {size} bytes; the limit is {limit} bytes"
        )

    def fail_framing(self, connection: ConnectionInterface, text: str) -> None:
        """Close a connection, because its input cannot be divided into frames.

        Further input is ignored. `text` is the error text for the client.
        """
        connection.current_method = 0
        self.unreadable = True
        connection.fail_connection(AmqpError(501, text))

    def await_close_ok(self, connection: ConnectionInterface, data: bytes, start: i64) -> i64:
        """Skip the input of a closing connection up to connection.close-ok or connection.close.

        The input begins at `start` in `data`. Return the position of the first byte that is not
        skipped.
        """
        size: i64 = len(data)
        position: i64 = start
        frame_max: i64 = connection.frame_max
        while size - position >= OVERHEAD and not self.unreadable:
            length: i64 = i64(read_i32_be(data, position + 3))
            end: i64 = position + length + OVERHEAD
            if length < 0 or length > frame_max or end <= size and data[end - 1] != FRAME_END:
                self.unreadable = True
                break
            if end > size:
                connection.need = end - position
                return position
            if data[position] == METHOD and length >= 4:
                method: i64 = i64(read_i32_be(data, position + 7))
                if method == _CONNECTION_CLOSE:
                    connection.send(0, spec.Connection.CloseOk())
                if method in (_CONNECTION_CLOSE, _CONNECTION_CLOSE_OK):
                    connection.on_closed(connection.reason)
                    return size
            position = end
        return size if self.unreadable else position


def _enter_closing(connection: ConnectionInterface, reason: str, wait_ms: i64) -> None:
    connection.state = states.CLOSING
    connection.reason = reason
    connection.set_deadline(connection.agenda.now + wait_ms)
