"""The settings of bridges: valid and invalid tables, topics, secrets."""

from __future__ import annotations

import tempfile
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.bridge.amqp_uri import parse_uri
from trellis.bridge.topic_map import TopicMap
from trellis.settings import Settings, SettingsError, load
from trellis.settings.bridge import BOTH, IN, OUT, TopicRule, parse_topic
from trellis.settings.loading import read_text
from trellis.settings.rendering import EXAMPLES, effective, render

TABLE = '[[bridge]]\nname = "a"\nremote = "mqtt://h"\ntopics = ["x/#"]\n'


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load_text(text)
    return str(refused.value)


def load_text(text: str) -> Settings:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return load([file.name], {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TABLE.replace("mqtt://h", "http://h"), "bridge[1].remote: must be"),
        (TABLE.replace("mqtt://h", "mqtt://u:p@h"), "must not contain credentials"),
        (TABLE.replace("x/#", "x/#/y"), "'x/#/y' is not a topic filter"),
        (TABLE.replace("x/#", "x up"), "'up' is not out, in or both"),
        (TABLE.replace("x/#", "x in 3"), "QoS '3' is not 0, 1 or 2"),
        (TABLE.replace("x/#", "x in 1 +/ y/"), "contains a wildcard"),
        (TABLE.replace("topics", "topic"), "unknown key; the nearest is topics"),
        (TABLE.replace('topics = ["x/#"]', ""), "the key 'topics' of this bridge is missing"),
        (TABLE + TABLE, 'the name "a" is given twice'),
        (TABLE + 'key = "k.pem"\n', "has a key, but no certificate"),
        (TABLE + "[mqtt]\nenabled = false\n", "mqtt.enabled is false; set mqtt.enabled to true"),
        (
            TABLE + '[mqtt]\nproxies = "127.0.0.1"\n',
            "which a bridge does not send; set mqtt.proxies to",
        ),
        (TABLE + '[mqtt]\nhost = "::"\nproxies = "::/64"\n', "connections from ::1 must begin"),
        (TABLE + "window = 0\n", "1..10000"),
        (TABLE + 'remote_protocol = "4"\n', "3.1.1"),
        (TABLE + "remote_packet_max = -1\n", "0..268435460"),
    ],
)
def test_an_invalid_bridge_is_refused(text: str, reason: str) -> None:
    assert reason in refusal(text)


def test_the_example_of_the_default_file_is_valid() -> None:
    example = "\n".join(line.removeprefix("# ") for line in EXAMPLES["bridge"].splitlines())
    assert tomllib.loads(example)["bridge"]
    load_text(example)


def test_a_rendered_bridge_loads_again_and_its_passwords_are_masked() -> None:
    settings = load_text(TABLE + 'remote_password = "secret"\n')
    assert load_text(render(settings)) == settings
    shown = effective(settings, {})
    assert "secret" not in shown
    assert read_text(render(settings), "f")


def test_the_form_of_mosquitto_is_read() -> None:
    assert parse_topic("a/#") == TopicRule("a/#", OUT, 0, "", "")
    assert parse_topic('a both 2 "" r/') == TopicRule("a", BOTH, 2, "", "r/")
    assert parse_topic("a in 1 l/ r/") == TopicRule("a", IN, 1, "l/", "r/")


LEVELS = st.text("abc", max_size=2)
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
PREFIXES = st.one_of(st.just(""), TOPICS.map(lambda topic: topic + "/"))


@given(TOPICS, PREFIXES, PREFIXES)
def test_a_topic_returns_from_the_other_broker_unchanged(
    topic: str, local: str, remote: str
) -> None:
    rules = [TopicRule("#", BOTH, 1, local, remote)]
    out = TopicMap(rules, True).destination(local + topic)
    assert out == (remote + topic, 1)
    assert TopicMap(rules, False).destination(out[0]) == (local + topic, 1)


@given(st.lists(st.tuples(TOPICS, st.sampled_from((OUT, IN, BOTH)), st.integers(0, 2)), max_size=5))
def test_each_direction_subscribes_to_its_own_filters_with_qos_1_at_most(
    rules: list[tuple[str, str, int]],
) -> None:
    every = [TopicRule(topic, direction, qos, "l/", "r/") for topic, direction, qos in rules]
    for outward, prefix, unwanted in ((True, "l/", IN), (False, "r/", OUT)):
        filters = TopicMap(every, outward).filters
        expected: dict[str, int] = {}
        for topic, direction, qos in rules:
            if direction != unwanted:
                expected[prefix + topic] = min(1, max(qos, expected.get(prefix + topic, 0)))
        assert filters == expected


@pytest.mark.parametrize(
    ("uri", "shown", "vhost"),
    [
        ("amqp://", "amqp://", None),
        ("amqp:///v", "amqp:///v", "v"),
        ("amqp://u:p%40@h", "amqp://h:5672", None),
        ("amqps://u@h:1/", "amqps://h:1/", ""),
        ("amqps://h/%2Fa?verify=verify_none&heartbeat=5", "amqps://h:5671//a", "/a"),
        ("amqp://[::1]:7/v", "amqp://[::1]:7/v", "v"),
    ],
)
def test_an_amqp_uri_is_read(uri: str, shown: str, vhost: str | None) -> None:
    parsed = parse_uri(uri)
    assert (parsed.shown, parsed.vhost) == (shown, vhost)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "h", "amqp:x", "http://h", "amqp://h:x", "amqp://h:0", "amqp://h/a/b"),
        *("amqp://h#f", "amqp://h?x=1", "amqp://h?verify=maybe", "amqp://h?heartbeat=0"),
    ],
)
def test_an_invalid_amqp_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValueError):
        parse_uri(uri)
