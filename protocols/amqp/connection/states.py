"""The states of a connection, from the protocol header to its end.

    state       the client sends          the broker answers              next state
    greeting    protocol header           connection.start                start
    start       connection.start-ok       (credentials are checked)       verdict
    verdict     (input is not read)       connection.tune                 tune
    tune        connection.tune-ok                                        open
    open        connection.open           connection.open-ok              running
    running     any method                its reply                       running
    any         connection.close          connection.close-ok             closed
    closing     connection.close-ok       (other input is ignored)        closed

A connection is `closing` from the broker's connection.close to the client's connection.close-ok;
closing.py has the causes. Operators see the names of the states in the list of connections.
"""

from __future__ import annotations

from typing import Final

from protocols.amqp.errors import AmqpError

GREETING: Final = "greeting"
START: Final = "start"
VERDICT: Final = "verdict"
TUNE: Final = "tune"
OPEN: Final = "open"
RUNNING: Final = "running"
CLOSING: Final = "closing"
CLOSED: Final = "closed"

#: The methods of the handshake: (state in which the method is allowed, method) -> next state.
_AFTER: Final = {
    (START, "Connection.StartOk"): VERDICT,
    (TUNE, "Connection.TuneOk"): OPEN,
    (OPEN, "Connection.Open"): RUNNING,
}


def after(state: str, method: str) -> str:
    """Return the state that follows when the client sends a method of the handshake in `state`.

    Raises AmqpError if the method is not allowed in `state`.
    """
    following = _AFTER.get((state, method))
    if following is None:
        raise AmqpError(504, f"{method} is not allowed in connection state '{state}'")
    return following
