"""Tests of copies of the core's errors.

A plan that refuses messages keeps one error, and raises a copy of the error for each message.
"""

from __future__ import annotations

from typing import Final

import pytest

from broker.errors import (
    AccessRefused,
    BrokerError,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    no_exchange,
    no_queue,
)

#: The fields of errors; each class has some of them, or none.
FIELDS: Final = ("kind", "name", "vhost", "argument", "thing", "reason")


@pytest.mark.parametrize(
    "error",
    [
        AccessRefused("refused"),
        LimitExceeded("too many"),
        InvalidArgument("x-max-length", "for queue 'q' in vhost '/'", "negative"),
        NotFound("no previously declared queue", "queue"),
        no_queue("q", "v"),
        no_exchange("x", "v"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_of_an_error_has_its_text_and_fields_and_no_traceback(error: BrokerError) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    copy = raised.value.copy()
    assert copy is not error and type(copy) is type(error) and copy.__traceback__ is None
    assert str(copy) == str(error)
    for name in FIELDS:
        assert getattr(copy, name, None) == getattr(error, name, None), name


def test_the_error_about_a_missing_object_names_it() -> None:
    error = no_queue("orders", "plant")
    assert str(error) == "no queue 'orders' in vhost 'plant'"
    assert (error.kind, error.name, error.vhost) == ("queue", "orders", "plant")
    error = no_exchange("sensors", "plant")
    assert str(error) == "no exchange 'sensors' in vhost 'plant'"
    assert (error.kind, error.name, error.vhost) == ("exchange", "sensors", "plant")
