"""Tests of the source of a setting's value: default, file, environment variable or flag."""

import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from broker.limits import BrokerLimits
from broker.store.memory import MemoryStore
from broker.store.segments import SEGMENT_SIZE
from protocols.amqp.codec.frames import FRAME_MAX, FRAME_MIN
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.options import MqttOptions
from tests.settings.conftest import HASH, write
from trellis.settings import Amqp, Mqtt, Settings, fill, load, load_with_sources
from trellis.settings.loading import OTHER_VARIABLES, SERVICE_LINK, read_environment
from trellis.settings.options import OPTIONS, USER_OPTIONS

# --- the source whose value holds ---


def test_settings_without_a_source_are_the_defaults() -> None:
    assert load(environ={}) == Settings()


def test_file_overrides_default_environment_overrides_file_and_flag_overrides_both() -> None:
    write("broker.toml", "[amqp]\nport = 1\nheartbeat = 1\nchannel_max = 1\n")
    environ = {"TRELLIS_AMQP_HEARTBEAT": "2", "TRELLIS_AMQP_CHANNEL_MAX": "2"}
    loaded, sources = load_with_sources(environ=environ, flags={"amqp.channel_max": "3"})
    assert (loaded.amqp.port, loaded.amqp.heartbeat, loaded.amqp.channel_max) == (1, 2, 3)
    assert sources == {
        "amqp.port": "broker.toml",
        "amqp.heartbeat": "TRELLIS_AMQP_HEARTBEAT",
        "amqp.channel_max": "--amqp-channel-max",
    }


def test_later_files_win_key_by_key() -> None:
    one = write("one.toml", "[mqtt]\nport = 1\nmax_levels = 1\n")
    two = write("two.toml", "[mqtt]\nport = 2\n")
    loaded = load([one, two], {})
    assert (loaded.mqtt.port, loaded.mqtt.max_levels) == (2, 1)


def test_variable_lists_files_and_flag_replaces_the_list() -> None:
    one, two = write("one.toml", "amqp.port = 1"), write("two.toml", "amqp.port = 2")
    environ = {"TRELLIS_CONFIG": os.pathsep.join([one, two])}
    assert load(environ=environ).amqp.port == 2
    assert load([one], environ).amqp.port == 1
    assert load(environ={"TRELLIS_CONFIG": ""}) == Settings()


def test_only_the_first_file_found_is_read(tmp_path: Path) -> None:
    write(str(tmp_path / "etc.toml"), "amqp.port = 2")
    assert load(environ={}).amqp.port == 2
    write("broker.toml", "mqtt.port = 1")
    assert (load(environ={}).amqp.port, load(environ={}).mqtt.port) == (5672, 1)


def test_the_process_environment_is_read_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRELLIS_LOG_LEVEL", "debug")
    assert load().log.level == "debug"
    assert load(environ={}).log.level == "info"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", "true"), ("false", "false"), ('"loopback"', "loopback"), ('"true"', "true")],
)
def test_anonymous_may_be_a_toml_boolean(text: str, value: str) -> None:
    assert load([write("a.toml", f"mqtt.anonymous = {text}")], {}).mqtt.anonymous == value


@pytest.mark.parametrize(
    "name",
    [
        "TRELLIS_PURE",
        "TRELLIS_REQUIRE",
        "TRELLIS_REQUIRE_COMPILED",
        "TRELLIS_SERVICE_HOST",
        "TRELLIS_SERVICE_PORT_AMQP",
        "TRELLIS_PORT",
        "TRELLIS_PORT_5672_TCP_ADDR",
        "TRELLIS_AMQP_PORT",
        "TRELLIS_AMQP_PORT_5672_TCP",
    ],
)
def test_variables_of_the_build_and_of_container_links_are_no_settings(name: str) -> None:
    assert read_environment({name: "tcp://10.0.0.1:5672"}) == {}


def test_password_is_the_first_line_of_its_file() -> None:
    write("secret", "päss word \nnot this\n")
    loaded, sources = load_with_sources(
        environ={"TRELLIS_USER": "ann", "TRELLIS_PASSWORD_FILE": "secret"}
    )
    assert loaded.password == "päss word "
    assert sources["password"] == "secret"


def test_users_have_every_permission_by_default() -> None:
    text = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\nwrite = "^a"\n'
    (user,) = load([write("a.toml", text)], {}).users
    assert (user.name, user.configure, user.write, user.read, user.loopback_only) == (
        "ann",
        ".*",
        "^a",
        ".*",
        False,
    )


def test_data_directory_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    for state, directory in (
        ("/state", "/state/trellis"),
        ("", "/home/ann/.local/state/trellis"),
        ("relative", None),
    ):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        assert load(environ={}).data.directory == Path(
            directory or "/home/ann/.local/state/trellis"
        )
    assert load(flags={"data.dir": "~/here"}).data.directory == Path("/home/ann/here")
    assert load(flags={"data.dir": ":memory:"}).data.directory is None


def test_addresses_are_canonical_and_each_once() -> None:
    assert Amqp(host=" 127.0.0.1,::1,0:0:0:0:0:0:0:1").addresses == ["127.0.0.1", "::1"]


def test_listeners_are_the_enabled_ones() -> None:
    assert list(Settings().listeners) == ["amqp", "mqtt", "metrics", "http"]
    assert list(Settings(mqtt=Mqtt(enabled=False)).listeners) == ["amqp", "metrics", "http"]


# --- names ---


def test_no_two_options_share_a_variable_or_a_flag() -> None:
    for names in (
        [option.variable for option in OPTIONS.values()],
        [option.flag for option in OPTIONS.values()],
    ):
        assert [name for name, times in Counter(names).items() if times > 1] == []


def test_no_option_looks_like_a_variable_that_is_no_setting() -> None:
    for option in OPTIONS.values():
        assert not OTHER_VARIABLES.fullmatch(option.variable)
        assert not SERVICE_LINK.fullmatch(option.variable)


def test_names_follow_from_the_key() -> None:
    option = OPTIONS["limits.unauthenticated_per_address"]
    assert option.variable == "TRELLIS_LIMITS_UNAUTHENTICATED_PER_ADDRESS"
    assert option.flag == "--limits-unauthenticated-per-address"


def test_every_option_has_help_and_a_valid_default() -> None:
    for option in [*OPTIONS.values(), *USER_OPTIONS.values()]:
        assert option.help
        if option.default is not msgspec.NODEFAULT:
            value = list(option.default) if isinstance(option.default, tuple) else option.default
            assert option.read(value) == option.default, option.key


# --- the options objects of the core ---


#: Attributes of options objects that no setting fills, with the reason.
NO_SETTING = {
    ("AmqpOptions", "version"): "the version of the program",
    ("MqttOptions", "version"): "the version of the program",
    ("MqttOptions", "will_grace_ms"): "cluster.grace, but only on a node that has taken over",
    ("BrokerLimits", "transaction"): "a safety limit far above the use of clients",
    ("BrokerLimits", "contexts"): "the size of a cache",
}

CORE: list[type] = [AmqpOptions, BrokerLimits, MqttOptions]


def attributes(options: object) -> dict[str, object]:
    """Return name -> value of the attributes of an options object."""
    names = [name for name in dir(options) if not name.startswith("_")]
    return {name: getattr(options, name) for name in names}


@pytest.mark.parametrize("owner", CORE)
def test_every_attribute_of_the_core_is_filled_by_one_setting(owner: type) -> None:
    filled = Counter(
        (field.owner.__name__, field.attribute)
        for option in OPTIONS.values()
        for field in option.fills
        if field.owner is owner
    )
    assert set(filled.values()) == {1}
    expected = {(owner.__name__, name) for name in attributes(owner())}
    assert set(filled) == expected - set(NO_SETTING)
    assert {key for key in NO_SETTING if key[0] == owner.__name__} <= expected


@pytest.mark.parametrize("owner", CORE)
def test_defaults_of_settings_and_core_are_equal(owner: type) -> None:
    assert attributes(fill(owner(), Settings())) == attributes(owner())


def test_given_values_reach_the_core() -> None:
    flags = {
        "amqp.frame_max": "5000",
        "limits.handshake": "1.5",
        "limits.queues": "0",
        "mqtt.retained": "7",
        "mqtt.session_expiry": "8",
        "matcher.default": "trie",
    }
    settings = load([write("a.toml", 'mqtt.no_subscribe = ["a"]')], {}, flags)
    amqp, mqtt = fill(AmqpOptions("1.2"), settings), fill(MqttOptions(), settings)
    limits = fill(BrokerLimits(), settings)
    assert (amqp.version, amqp.frame_max, amqp.handshake_ms) == ("1.2", 5000, 1500)
    assert (mqtt.handshake_ms, mqtt.session_expiry_s, mqtt.no_subscribe) == (1500, 8, ["a"])
    assert (limits.queues, limits.exchanges, limits.retained) == (0, 100_000, 7)
    assert limits.matcher == "trie"


def test_help_says_that_limits_of_queues_and_exchanges_count_each_virtual_host() -> None:
    for key in ("limits.queues", "limits.exchanges"):
        assert "of each virtual host" in OPTIONS[key].help
        assert "0 is no limit" in OPTIONS[key].help


def test_defaults_and_bounds_equal_the_constants_of_the_code_that_obeys_them() -> None:
    assert OPTIONS["amqp.frame_max"].default == OPTIONS["amqp.frame_max"].meta.le == FRAME_MAX
    assert OPTIONS["amqp.frame_max"].meta.ge == FRAME_MIN
    assert Settings().store.window == MemoryStore().window
    assert Settings().store.segment == SEGMENT_SIZE


def test_options_of_kafkas_client_have_dotted_names_with_and_without_quotes() -> None:
    text = """[cluster.options]
sasl.mechanisms = "PLAIN"
sasl.username = "ann"
"ssl.ca.location" = "/ca.pem"
enable.ssl.certificate.verification = false
"""
    assert load([write("my.toml", text)], {}).cluster.client_options == {
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "ann",
        "ssl.ca.location": "/ca.pem",
        "enable.ssl.certificate.verification": False,
    }


def test_topic_of_a_cluster_has_the_name_of_the_broker_by_default() -> None:
    flags = {"cluster.servers": "kafka-1:9092", "cluster.name": "orders"}
    cluster = load(environ={}, flags=flags).cluster
    assert (cluster.enabled, cluster.log_topic) == (True, "trellis-orders")
    assert load(environ={}, flags=flags | {"cluster.topic": "t"}).cluster.log_topic == "t"
    assert not load(environ={}).cluster.enabled
