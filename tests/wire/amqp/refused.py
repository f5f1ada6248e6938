"""Declarations and transactions that are refused, for the table of soft errors in test_errors.py.

A row is (refused methods, reply code, reply text, class id, method id): the ids are in the
channel.close. `prepared` in provoked.py makes the queues and exchanges.
"""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec

Q, X, T = spec.Queue, spec.Exchange, spec.Tx

DECLARING: Final[list[tuple[Any, int, str, int, int]]] = [
    (
        Q.Declare(queue="q", durable=True),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received "
            "'true' but current is 'false'"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="q", auto_delete=True),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'q' in vhost '/': "
            "received 'true' but current is 'false'"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="q", arguments={"x-message-ttl": 5}),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': "
            "received the value '5' of type 'signedint' but current is none"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="single"),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue "
            "'single' in vhost '/': "
            "received none but current is the value 'true' of type 'bool'"
        ),
        50,
        10,
    ),
    (
        X.Declare(exchange="x", exchange_type="direct", durable=True),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'x' in vhost '/': "
            "received 'true' but current is 'false'"
        ),
        40,
        10,
    ),
    (
        X.Declare(exchange="x", exchange_type="direct", auto_delete=True),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for exchange 'x' in vhost '/': "
            "received 'true' but current is 'false'"
        ),
        40,
        10,
    ),
    (
        X.Declare(exchange="x", exchange_type="direct", internal=True),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'internal' for exchange 'x' in vhost '/': "
            "received 'true' but current is 'false'"
        ),
        40,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-message-ttl": -1}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'y' in vhost '/': -1 is "
            "too small; the minimum is 0"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-expires": 0}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'y' in vhost '/': 0 is too "
            "small; the minimum is 1"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-max-length": "many"}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'y' in vhost '/': must be "
            "a number"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-max-priority": 256}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'y' in vhost '/': 256 is "
            "too large; the maximum is 255"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-overflow": "explode"}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue 'y' in vhost '/': "
            "must be one of drop-head, reject-publish, reject-publish-dlx, not 'explode'"
        ),
        50,
        10,
    ),
    (
        Q.Declare(queue="y", arguments={"x-dead-letter-routing-key": "k"}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'y' in "
            "vhost '/': "
            "the argument 'x-dead-letter-exchange' must be set, too"
        ),
        50,
        10,
    ),
    (T.Commit(), 406, "PRECONDITION_FAILED - channel is not transactional", 90, 20),
    (T.Rollback(), 406, "PRECONDITION_FAILED - channel is not transactional", 90, 30),
]
