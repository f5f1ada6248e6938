"""Tests that a bridge recognizes the messages that a broker of MQTT 3.1.1 sends back (echoes).

Other tests are about the choice of the version of MQTT.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.bridge import echoes as module
from trellis.bridge.echoes import ECHO_SECONDS, Echoes
from trellis.bridge.mqtt_level import UNANSWERED_MAX, ProtocolChoice
from trellis.bridge.topic_map import TopicMap
from trellis.settings.bridge import AUTO, BOTH, MQTT5, MQTT311, OUT, TopicRule

MAP = TopicMap([TopicRule("b/#", BOTH, 1, "", ""), TopicRule("o/#", OUT, 1, "", "")], False)
MESSAGES = st.tuples(st.sampled_from(("b/1", "b/2", "o/1")), st.sampled_from((b"", b"x")))


@given(st.lists(st.tuples(st.booleans(), MESSAGES)))
def test_each_publication_takes_one_equal_message(
    steps: list[tuple[bool, tuple[str, bytes]]],
) -> None:
    """Check that for each publication, the next equal message that is received is an echo.

    Publications to o/1 have no echo, because the bridge receives nothing from this topic.
    """
    echoes, expected = Echoes(MAP), Counter[tuple[str, bytes]]()
    for is_publication, (topic, payload) in steps:
        if is_publication:
            echoes.expect(topic, payload, False, 0.0)
            expected[topic, payload] += topic.startswith("b/")
        else:
            assert echoes.is_echo(topic, payload, False, 0.0) == (expected[topic, payload] > 0)
            expected[topic, payload] -= expected[topic, payload] > 0
        assert len(echoes) == expected.total()


def test_an_echo_is_not_expected_for_ever() -> None:
    echoes = Echoes(MAP)
    echoes.expect("b/1", b"x", False, 0.0)
    echoes.expect("b/1", b"x", False, 1.0)
    assert echoes.is_echo("b/1", b"x", False, ECHO_SECONDS)
    assert not echoes.is_echo("b/1", b"x", False, ECHO_SECONDS + 1)
    assert len(echoes) == 0


def test_a_lost_session_has_no_echoes() -> None:
    echoes = Echoes(MAP)
    echoes.expect("b/1", b"x", True, 0.0)
    echoes.on_session_lost()
    assert not echoes.is_echo("b/1", b"x", False, 0.0)
    assert echoes.is_echo("b/1", b"x", True, 0.0), "the broker still has the retained message"


def test_only_the_last_retained_publication_of_a_topic_is_known() -> None:
    echoes = Echoes(MAP)
    for payload in (b"1", b"2"):
        echoes.expect("b/1", payload, True, 0.0)
    assert not echoes.is_echo("b/1", b"1", True, 0.0)
    assert echoes.is_echo("b/1", b"2", True, 0.0)
    assert echoes.is_echo("b/1", b"2", True, 0.0), "each subscription brings the message again"


def test_the_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ECHOES_MAX", 3)
    monkeypatch.setattr(module, "RETAINED_MAX", 3)
    echoes = Echoes(MAP)
    for number in range(5):
        echoes.expect(f"b/{number}", b"", True, 0.0)
    for retain in (False, True):
        known = [echoes.is_echo(f"b/{number}", b"", retain, 0.0) for number in range(5)]
        assert known == [False, False, True, True, True]


def test_the_bridge_changes_the_version_after_a_refusal_only_if_it_may() -> None:
    for setting in (MQTT5, MQTT311):
        choice = ProtocolChoice(setting)
        assert 'set remote_protocol to "auto"' in choice.on_refused()
        for _ in range(9):
            choice.on_unanswered()
        assert choice.version == setting
    choice = ProtocolChoice(AUTO)
    assert choice.version == MQTT5
    assert "MQTT 3.1.1 next" in choice.on_refused()
    choice.on_accepted()
    for _ in range(9):
        choice.on_unanswered()
    assert choice.version == MQTT311, "an accepted version is kept"
    choice.on_lost()
    assert choice.version == MQTT311, "the broker has refused MQTT 5"
    choice.on_refused()
    assert choice.version == MQTT5


def test_a_broker_that_does_not_answer_mqtt_5_is_asked_in_mqtt_311() -> None:
    choice = ProtocolChoice(AUTO)
    for _ in range(3):
        for _ in range(UNANSWERED_MAX):
            assert choice.version == MQTT5
            choice.on_unanswered()
        assert choice.version == MQTT311
        # A broker that does not run answers no version, so the bridge tries MQTT 5 again.
        choice.on_unanswered()
    for _ in range(UNANSWERED_MAX):
        choice.on_unanswered()
    choice.on_accepted()
    choice.on_lost()
    assert choice.version == MQTT5, "the broker may have been unreachable before"
    choice.on_unanswered()
    assert choice.version == MQTT311
    choice.on_unanswered()
    choice.on_accepted()
    for _ in range(9):
        choice.on_unanswered()
    choice.on_lost()
    assert choice.version == MQTT5, "a broker that has accepted MQTT 5 was only stopped"
