"""Tests that a Window behaves like a dict.

A Window holds the unacknowledged deliveries of an AMQP channel or an MQTT session.
"""

from __future__ import annotations

import pamqp.commands
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.messages.message import PLAIN, Address, Message
from broker.queues.consumer import Delivery
from protocols.window import SPAN, Window
from tests.clients import World

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "skip", "take", "up to", "far", "all"]), st.integers(0, 30)
    ),
    max_size=60,
)


def delivery() -> Delivery:
    client = World().amqp()
    client.queue("q")
    client.send(pamqp.commands.Basic.Consume(queue="q"))
    client.publish("", "q", b"x")
    return Delivery(
        Message(Address("", "q"), b"x", PLAIN, 0), client.world.queue("q").consumers[0], 1
    )


ONE = delivery()


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_window_behaves_like_a_dict(steps: list[tuple[str, int]]) -> None:
    window, model, number = Window(), {}, 0
    for step, value in steps:
        if step == "add":
            number += 1
            model[number] = Delivery(ONE.message, ONE.consumer, number)
            assert window.add(model[number]) == number
        elif step == "skip":
            number += 1
            assert window.skip() == number
        elif step == "far":
            for _ in range(SPAN + 2 if value < 2 else 600):
                number += 1
                assert window.skip() == number
        elif step == "take":
            wanted = sorted(model)[value % len(model)] if model and value % 3 else number - value
            assert window.get(wanted) is model.get(wanted)
            assert window.take(wanted) is model.pop(wanted, None)
        else:
            limit = number if step == "all" else number - value
            expected = [model.pop(one) for one in sorted(model) if one <= limit]
            assert window.most_up_to(limit) >= len(expected)
            assert (window.take_all() if step == "all" else window.take_up_to(limit)) == expected
        assert (window.count, window.next) == (len(model), number + 1)
        assert [(int(at), item) for at, item in window.outstanding()] == sorted(model.items())


def test_unsettled_delivery_does_not_make_the_window_grow() -> None:
    window = Window()
    window.add(ONE)
    for number in range(2, 3 * SPAN):
        assert window.skip() == number
        assert window.span() <= SPAN
    assert window.take(1) is ONE and window.count == 0 and window.outstanding() == []
