"""Tests of settings: which source decides a value, and which error an invalid value gives.

The sources are defaults, files, environment variables and flags.
"""

import os
import re
import string
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from argon2 import PasswordHasher
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from broker.limits import BrokerLimits
from broker.names import fault_of
from broker.store.memory import MemoryStore
from broker.store.segments import SEGMENT_SIZE
from matching import NAMES
from protocols.amqp.codec.frames import FRAME_MAX, FRAME_MIN
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.options import MqttOptions
from trellis.settings import (
    Amqp,
    Listener,
    Mqtt,
    Settings,
    SettingsError,
    fill,
    load,
    load_with_sources,
)
from trellis.settings.checks import problems
from trellis.settings.loading import OTHER_VARIABLES, SERVICE_LINK, read_environment, read_text
from trellis.settings.options import OPTIONS, SECTIONS, USER_OPTIONS, Option
from trellis.settings.rendering import default_file, effective, quantity, render, toml

CONFIG = Path(__file__).parents[1] / "config"
HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("a word")


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings file and the TRELLIS_ variables of this machine from the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "trellis.settings.loading.SEARCHED", (Path("broker.toml"), tmp_path / "etc.toml")
    )
    for name in [name for name in os.environ if name.startswith("TRELLIS_")]:
        monkeypatch.delenv(name)


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


# --- which value holds ---


def test_nothing_given_is_all_defaults() -> None:
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


# --- what is wrong, in one line ---

PORT = "must be a whole number 0..65535"
FILES = [
    ("amqp.prot = 1", "amqp.prot: unknown key; the nearest is amqp.port"),
    ("amqp.max_packet = 1", "amqp.max_packet: unknown key; the nearest is mqtt.max_packet"),
    ("[ampq]\nport = 1", "ampq: unknown key; the nearest is amqp"),
    ("usr = 1", "usr: unknown key; the nearest is user"),
    ('"a\\nb" = 1', "a\\nb: unknown key; the nearest is "),
    ("amqp = 1", "amqp: must be a table, written [amqp]"),
    ("amqp.port = 65536", f"amqp.port: {PORT}, got 65536"),
    ("amqp.port = -1", f"amqp.port: {PORT}, got -1"),
    ("amqp.port = true", f"amqp.port: {PORT}, got true"),
    ("amqp.port = 1.5", f"amqp.port: {PORT}, got 1.5"),
    ('amqp.port = "5672"', f'amqp.port: {PORT}, got "5672"'),
    ("amqp.port = [1]", f"amqp.port: {PORT}, got a list"),
    ("[amqp.port]", f"amqp.port: {PORT}, got a table"),
    ("amqp.enabled = 1", "amqp.enabled: must be true or false, got 1"),
    ("amqp.frame_max = 1", "amqp.frame_max: must be a whole number 4096..131072 bytes, got 1"),
    ("auth.queue = 0", "auth.queue: must be a whole number at least 1, got 0"),
    (
        "limits.queues = 99999999999999999999",
        "limits.queues: must be a whole number at least 0, got 99999999999999999999",
    ),
    ("limits.handshake = nan", "limits.handshake: must be a number 0.01..3600 s, got nan"),
    (
        'log.level = "warn"',
        'log.level: must be one of debug, info, warning, error, got "warn"; the nearest is warning',
    ),
    (
        'matcher.allowed = ["tri"]',
        f'matcher.allowed: must be a list of one or more of {", ".join(NAMES)}, got "tri"; the',
    ),
    (
        "matcher.allowed = []",
        f"matcher.allowed: must be a list of one or more of {', '.join(NAMES)}, got a list",
    ),
    (
        'matcher.allowed = ["bitmap"]',
        "matcher.allowed: auto, the default algorithm, is missing from the allowed ones (bitmap)",
    ),
    ('node.name = "a b"', 'node.name: must be 1 to 255 letters, digits and . _ @ -, got "a b"'),
    ('data.dir = "a\\u0000"', 'data.dir: must be text without NUL, got "a\\x00"'),
    (
        'data.dir = "~no-user-of-this-name/x"',
        "data.dir: needs a home directory, and none is known; give an absolute path",
    ),
    (
        'amqp.host = "localhost"',
        'amqp.host: must be IP addresses separated by commas, such as "127.0.0.1,::1" or ',
    ),
    ('amqp.host = ""', "amqp.host: must be IP addresses"),
    (
        f'node.name = "{"x" * 300}"',
        f'node.name: must be 1 to 255 letters, digits and . _ @ -, got "{"x" * 60}..."',
    ),
    ("amqtt.plugins = 1", "amqtt.plugins: must be a table of tables"),
    ('amqtt.plugins."a.B" = "hunter2"', "amqtt.plugins: must be a table of tables"),
    ("users = 1", "users: must be a list of tables, written [[users]]"),
    ("users = [1]", "users: must be a list of tables, written [[users]]"),
    ("[[users]]\nnme = 1", "users[1].nme: unknown key; the nearest is name"),
    ("[[users]]", "users[1].name: is missing (name given at login)"),
    (
        '[[users]]\nname = "a"',
        "users[1].password_hash: is missing (output of `trellis hash-password`)",
    ),
    (
        '[[users]]\nname = "a"\npassword_hash = "hunter2"',
        "users[1].password_hash: must be the output of `trellis hash-pa",
    ),
    (
        f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\nread = "("',
        "users[1].read: must be a valid regular expression (missing",
    ),
    (
        f'[[users]]\nname = "guest"\npassword_hash = "{HASH}"',
        "users: the user guest is built in; set auth.guest to false",
    ),
    (
        f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\n' * 2,
        'users: "a" is given twice; user names must differ',
    ),
    (f'user = "a"\n[[users]]\nname = "a"\npassword_hash = "{HASH}"\n', 'users: "a" is given twice'),
    (
        'user = "a"\npassword = "b"\npassword_file = "c"',
        "password: a password and a password file are given; remove one",
    ),
    ('password = "hunter2"', "password: is given without user; set user too"),
    ('password_file = "c"', "password_file: is given without user; set user too"),
    ("password = 123456789", "password: must be text"),
    (
        'user = "a"\npassword_file = "gone"',
        "password_file: gone cannot be read (No such file or directory)",
    ),
    (
        'user = "a"\npassword_file = "empty"',
        "password_file: empty has an empty first line, which should be the password",
    ),
    ('user = "a"\npassword_file = "binary"', "password_file: binary must be UTF-8 text"),
    (
        "amqp.port = 1883",
        "amqp.port: amqp and mqtt both have port 1883 on 127.0.0.1; give each its own, or 0",
    ),
    (
        "amqps.enabled = true",
        "amqps.enabled: amqps needs a certificate; set tls.certificate to a PEM file",
    ),
    (
        'mqtts.enabled = true\nmqtts.client_certificate = "required"\ntls.certificate = "c"',
        'mqtts.client_certificate: is "required", but no authority is known; set tls.ca to a PEM',
    ),
    (
        'wss.enabled = true\nwss.certificate_user = true\ntls.certificate = "c"',
        'wss.certificate_user: needs wss.client_certificate to be "optional" or "required"',
    ),
    (
        'mqtts.client_certificate = "yes"',
        'mqtts.client_certificate: must be one of none, optional, required, got "yes"; the',
    ),
    ('tls.minimum = "1.1"', 'tls.minimum: must be one of 1.2, 1.3, got "1.1"; the nearest is 1.2'),
    ('tls.names."a.b" = "c.pem"', "tls.names: must be a table of tables of text, got a table"),
    (
        'tls.names."a.b".cert = "c.pem"',
        'tls.names: "a.b" has no certificate; set its certificate to a PEM file',
    ),
    (
        'tls.names."a.b" = {certificate = "c", kei = "d"}',
        'tls.names: "a.b" has the unknown key kei; it may have certificate and key',
    ),
    ('ws.path = "ws"', 'ws.path: must be a path, such as "/ws", got "ws"'),
    (
        'ws.origins = "app.example.org"',
        'ws.origins: must be web origins separated by commas, such as "https://app.example.org,',
    ),
    (
        'mqtt.proxies = "10.0.0.1/8"',
        "mqtt.proxies: must be IP addresses or networks separated by commas, such as ",
    ),
    (
        'mqtt.socket_mode = "rw"',
        'mqtt.socket_mode: must be three octal digits, such as "0660", got "rw"',
    ),
    (
        f'mqtt.socket = "/{"x" * 120}"',
        "mqtt.socket: is too long: 121 bytes; the path of a Unix socket may have at most 103 bytes",
    ),
    (
        'metrics.port = 1883\nmetrics.host = "0.0.0.0"',
        "metrics.port: mqtt and metrics both have port 1883 on 0.0.0.0",
    ),
]


def message(problem: pytest.ExceptionInfo[SettingsError]) -> str:
    """Return the text of an error, which is one line and holds no secret."""
    text = str(problem.value)
    assert text.isprintable()
    assert not any(secret in text for secret in ("hunter2", "123456789", "argon2id"))
    return text


@pytest.mark.parametrize(("text", "said"), FILES, ids=[said for _, said in FILES])
def test_error_in_a_file_is_one_line(text: str, said: str) -> None:
    write("empty", "\n")
    Path("binary").write_bytes(b"\xff")
    with pytest.raises(SettingsError) as problem:
        load([write("my.toml", text)], {})
    assert message(problem).startswith(f"my.toml: {said}")


BROKEN = [
    (
        b"[amqp]\nport 5\n",
        "my.toml:2: is not valid TOML: expected '=' after a key in a key/value pair",
    ),
    (b"a = '''x\n\n", "my.toml:3: is not valid TOML: "),
    (b"a = " + b"9" * 5000, "my.toml:1: is not valid TOML: "),
    (b"a = " + b"[" * 5000, "my.toml: is not valid TOML: it is nested too deeply"),
    (b"a = '\xff'", "my.toml: must be UTF-8 text"),
]


@pytest.mark.parametrize(("data", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_invalid_toml_is_an_error_with_its_line(data: bytes, said: str) -> None:
    Path("my.toml").write_bytes(data)
    with pytest.raises(SettingsError) as problem:
        load(["my.toml"], {})
    assert message(problem).startswith(said)


def test_error_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as problem:
        load(["gone.toml"], {})
    assert message(problem) == "gone.toml: cannot be read (No such file or directory)"
    with pytest.raises(SettingsError) as problem:
        load(environ={"TRELLIS_CONFIG": str(tmp_path)})
    assert message(problem) == f"{tmp_path}: cannot be read (Is a directory)"


ENVIRONMENTS = [
    (
        "TRELLIS_AMQP_PROT",
        "1",
        "TRELLIS_AMQP_PROT: unknown environment variable; the nearest is TRELLIS_AMQP_PORT",
    ),
    ("TRELLIS_AMQP_PORT", "", f'TRELLIS_AMQP_PORT: amqp.port: {PORT}, got ""'),
    ("TRELLIS_AMQP_PORT", "x\ny", f'TRELLIS_AMQP_PORT: amqp.port: {PORT}, got "x\\ny"'),
    (
        "TRELLIS_AMQP_ENABLED",
        "yes",
        'TRELLIS_AMQP_ENABLED: amqp.enabled: must be true or false, got "yes"',
    ),
    (
        "TRELLIS_MATCHER_ALLOWED",
        "trie",
        "TRELLIS_MATCHER_ALLOWED: matcher.allowed: can be set in a file only",
    ),
    (
        "TRELLIS_USERS",
        "a",
        "TRELLIS_USERS: users: can be set in a file only, because it is a list or a table",
    ),
    (
        "TRELLIS_PASSWORD",
        "hunter2",
        "TRELLIS_PASSWORD: password: is given without user; set user too",
    ),
    ("TRELLIS_PASSWORD", "hunter2\udcff", "TRELLIS_PASSWORD: password: must be UTF-8"),
    (
        "TRELLIS_USER",
        "guest",
        (
            "TRELLIS_USER: user: the user guest is built in; set auth.guest to false to define "
            "guest yourself"
        ),
    ),
    (
        "TRELLIS_MATCHER_DEFAULT",
        "tri",
        f"TRELLIS_MATCHER_DEFAULT: matcher.default: must be one of {', '.join(NAMES)}, got",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "said"), ENVIRONMENTS, ids=[said for *_, said in ENVIRONMENTS]
)
def test_error_in_a_variable_is_one_line(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as problem:
        load(environ={name: value})
    assert message(problem).startswith(said)


def test_error_in_a_flag_is_one_line() -> None:
    with pytest.raises(SettingsError) as problem:
        load(environ={}, flags={"amqp.port": "http"})
    assert message(problem) == f'--amqp-port: amqp.port: {PORT}, got "http"'


@pytest.mark.parametrize(
    ("host", "other", "clash"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("::", "::1", True),
        ("::", "0.0.0.0", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("10.0.0.1,::1", "10.0.0.2,0::1", True),
    ],
)
def test_two_listeners_may_share_a_port_only_on_different_addresses(
    host: str, other: str, clash: bool
) -> None:
    both = Settings(amqp=Amqp(host=host, port=5), mqtt=Mqtt(host=other, port=5))
    assert bool(list(problems(both))) == clash
    assert not list(
        problems(msgspec.structs.replace(both, mqtt=Mqtt(host=other, port=5, enabled=False)))
    )
    assert not list(problems(Settings(amqp=Amqp(host=host, port=0), mqtt=Mqtt(host=other, port=0))))


def test_missing_home_directory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(cls: type[Path]) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", classmethod(homeless))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(SettingsError) as problem:
        load(environ={})
    assert message(problem).startswith("default: data.dir: needs a home directory")
    assert load(flags={"data.dir": "/data"}, environ={}).data.directory == Path("/data")


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
    ("BrokerLimits", "transaction"): "a safety limit far above the use of clients",
    ("BrokerLimits", "contexts"): "the size of a cache",
}
CORE: list[type] = [AmqpOptions, BrokerLimits, MqttOptions]


def attributes(options: object) -> dict[str, object]:
    """Return the attributes of an options object by name."""
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


# --- errors that repeat themselves ---

INVALID = ["(", "a b", "", "x,y", "rw", "a=", "allow", "allow publish a/#/b", "\0", "\udcff", "?"]


def repeated(text: str) -> str | None:
    """Return the first word or phrase of up to four words that follows itself in `text`."""
    words = re.findall(r"[\w.]+", text.lower())
    for size in range(1, 5):
        for at in range(len(words) - 2 * size + 1):
            if words[at : at + size] == words[at + size : at + 2 * size]:
                return " ".join(words[at : at + size])
    return None


def test_repeated_words_are_found() -> None:
    assert repeated("users[1].tags: must be must be management") == "must be"
    assert repeated("amqp.port: amqp.port and mqtt.port are both 1") == "amqp.port"
    assert repeated("amqp.port: must be a whole number") is None


@pytest.mark.parametrize("option", [*OPTIONS.values(), *USER_OPTIONS.values()], ids=lambda o: o.key)
def test_no_error_of_a_value_repeats_a_word(option: Option) -> None:
    wrong: list[object] = [*INVALID, *([word] for word in INVALID), [1], {}, -1, 1e99, True]
    errors = []
    for value in wrong:
        try:
            option.read(value)
        except ValueError as error:
            errors.append(f"{option.key}: {error}".partition(", got ")[0])
    assert errors
    assert {error: repeated(error) for error in errors} == dict.fromkeys(errors)
    assert all(": must be " in error for error in errors)


@pytest.mark.parametrize("said", [said for _, said in FILES] + [said for *_, said in ENVIRONMENTS])
def test_no_expected_error_repeats_a_word(said: str) -> None:
    assert repeated(said) is None


# --- files ---


def test_default_file_is_up_to_date() -> None:
    assert (CONFIG / "broker.toml").read_text(encoding="utf-8") == default_file(), (
        "run `trellis config > config/broker.toml`"
    )


def test_default_file_has_whole_headings_and_no_long_line() -> None:
    lines = default_file().splitlines()
    for section, table in SECTIONS.items():
        heading = f"[{section}]  # {' '.join(str(table.__doc__).split()).rstrip('.')}"
        assert heading in lines
    assert [line for line in lines if len(line) > 100] == []


def test_default_file_sets_every_key_to_its_default() -> None:
    settings, sources = load_with_sources([CONFIG / "broker.toml"], {})
    assert settings == Settings()
    assert set(OPTIONS) - set(sources) == {
        "users",
        "amqtt.plugins",
        "tls.names",
    }  # shown as examples


def test_examples_in_the_default_file_are_valid_without_their_number_sign() -> None:
    lines = default_file().split("[amqtt]")[1].splitlines()
    examples = [
        line[2:]
        for line in lines
        if line.startswith("# [") or (line.startswith("# ") and " = " in line)
    ]
    text = "\n".join(examples).replace("$argon2id$v=19$m=19456,t=2,p=1$...", HASH)
    settings = load([write("examples.toml", text)], {})
    assert settings.users[0].write == r"^amq\.topic$"
    assert list(settings.amqtt.plugins) == ["amqtt.plugins.authentication.FileAuthPlugin"]


def test_container_file_listens_everywhere_and_requires_passwords() -> None:
    flags = {f"{name}.enabled": "true" for name in ("amqps", "mqtts", "ws", "wss")} | {
        "tls.certificate": "c"
    }
    settings = load([CONFIG / "docker.toml"], {}, flags)
    assert len(settings.listeners) == 8
    assert {listener.host for listener in settings.listeners.values()} == {"0.0.0.0"}
    assert not settings.auth.guest
    assert settings.mqtt.anonymous == "false"
    assert settings.data.directory == Path("/var/lib/trellis")


def test_conformance_file_is_valid() -> None:
    assert load([CONFIG / "conformance.toml"], {}).mqtt.receive_maximum == 20


def test_effective_values_name_their_source_and_mask_secrets() -> None:
    user = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
    text = f'{user}[amqtt.plugins."a.B"]\nkey = "hunter2"\n'
    environ = {"TRELLIS_USER": "bob", "TRELLIS_PASSWORD": "hunter2", "TRELLIS_AMQP_PORT": "1"}
    printed = effective(*load_with_sources([write("a.toml", text)], environ))
    assert 'password = "********"  # TRELLIS_PASSWORD\n' in printed
    assert "port = 1  # TRELLIS_AMQP_PORT\n" in printed
    assert "heartbeat = 60  # default\n" in printed
    assert '[[users]]  # a.toml\nname = "ann"\npassword_hash = "********"\n' in printed
    assert 'plugins = {"a.B" = {key = "********"}}  # a.toml\n' in printed
    assert "hunter2" not in printed
    assert "argon2id" not in printed
    assert tomllib.loads(printed)["amqp"]["port"] == 1


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (16 << 20, "bytes", "16 MiB"),
        (1 << 10, "bytes", "1 KiB"),
        (1000, "bytes", "1000 bytes"),
        (0, "bytes", "0 bytes"),
        (1_209_600, "s", "14 days"),
        (60, "s", "60 s"),
        (0.5, "s", "0.5 s"),
        (200, "", "200"),
        (True, "", "true"),
        ("trie", "", "trie"),
    ],
)
def test_quantities_have_their_largest_exact_unit(value: object, unit: str, said: str) -> None:
    assert quantity(value, unit) == said


# --- properties ---

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "check_addresses": st.lists(st.ip_addresses().map(str), min_size=1, max_size=3).map(",".join),
    "check_name": st.text(string.ascii_letters + "._@-", min_size=1, max_size=5),
    "check_object_name": TEXT.filter(lambda name: not fault_of(name)),
    "check_regex": st.sampled_from([".*", r"^amq\.", '["\\\\]', "é|\n"]),
    "check_hash": st.just(HASH),
    "check_networks": st.lists(
        st.ip_addresses(network="10.0.0.0/8").map(str) | st.just("fd00::/8"), max_size=3
    ).map(",".join),
    "check_origins": st.sampled_from(
        ["", "*", "null,https://app.example.org", "http://10.0.0.5:8080"]
    ),
    "check_hosts": st.sampled_from(["", "broker", "broker.example.org,b_1"]),
    "check_path": st.sampled_from(["/", "/ws", "/mqtt/ws"]),
    "check_mode": st.sampled_from(["0660", "600", "0777"]),
}
TOML = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False),
        TEXT,
        st.datetimes(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=4,
)


def values(option: Option) -> st.SearchStrategy[Any]:
    """Return a strategy for valid values of a setting, as `Settings` holds them."""
    if option.key == "users":
        fields = {name: values(field) for name, field in USER_OPTIONS.items()}
        users = st.fixed_dictionaries({**fields, "name": TEXT.filter(bool)})
        return st.lists(users, max_size=2, unique_by=lambda user: str(user["name"]))
    if option.key == "amqtt.plugins":
        return st.dictionaries(TEXT, st.dictionaries(TEXT, TOML, max_size=2), max_size=2)
    if option.key == "tls.names":
        return st.dictionaries(
            TEXT,
            st.fixed_dictionaries({"certificate": TEXT.filter(bool)}, optional={"key": TEXT}),
            max_size=2,
        )
    if option.key == "rules":
        return st.lists(
            st.sampled_from(["allow all #", "deny publish a/{username}/+", "allow subscribe x/#"]),
            max_size=2,
        )
    if option.key == "jwt.algorithms":
        return st.lists(st.sampled_from(option.choices), min_size=1, max_size=3)
    if option.key == "tags":
        return st.lists(st.sampled_from(["management", "policymaker", "monitoring"]), max_size=2)
    if option.key == "stream.journals":
        return st.lists(st.sampled_from(["/=journal", "v=w=x"]), max_size=2).map(tuple)
    if option.in_files_only:
        return st.just(list(NAMES))
    if option.choices:
        return st.sampled_from(option.choices)
    if option.type is bool:
        return st.booleans()
    if option.type is int:
        return st.integers(int(option.meta.ge or 0), int(option.meta.le or 0))
    if option.type is float:
        return st.floats(option.meta.ge, option.meta.le)
    check = (option.meta.extra or {})["check"]
    return TEXT if check is None else SAMPLES[check.__name__]


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    """Return settings with a random value for every key.

    The keys user and password stay empty, because each needs the other.
    """
    tree: dict[str, Any] = {}
    for option in OPTIONS.values():
        if option.section:
            tree.setdefault(option.section, {})[option.name] = draw(values(option))
        elif option.key == "users":
            tree["users"] = draw(values(option))
    return msgspec.convert(tree, Settings)


@given(any_settings())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_rendered_settings_load_back_to_the_same(drawn: Settings) -> None:
    assume(not list(problems(drawn)))
    assert load([write("rendered.toml", render(drawn))], {}) == drawn


@given(TOML)
@settings(max_examples=100, deadline=None)
def test_written_value_reads_back_to_the_same(value: Any) -> None:
    text = f"[amqtt.plugins.p]\nv = {toml(value)}\n"
    assert read_text(text, "text")["amqtt.plugins"].value == {"p": {"v": value}}


SIGNS = ["[", "]", "[[users]]", "=", ".", ",", "{", "}", '"', "'", "\n", " ", "#", "\\", "\0"]
WORDS = ["users", "amqp", "true", "1", "-1.5", "inf", '"x"', "1979-05-27", "é", "0x" + "f" * 4000]
FRAGMENTS = st.sampled_from([*OPTIONS, *USER_OPTIONS, *SIGNS, *WORDS])


def error_in(files: list[str] | None, environ: dict[str, str]) -> str | None:
    """Return the text of the error in settings, or None if they are valid."""
    try:
        load(files, environ)
    except SettingsError as error:
        return str(error)
    return None


@given(st.one_of(st.lists(FRAGMENTS, max_size=12).map("".join), st.text(max_size=30)))
@settings(max_examples=150, deadline=None)
@example("amqp.port = 0x" + "f" * 8000)
@example('users = [{name = "a", password_hash = "$argon2id$v=19$m=1,t=1,p=1$$"}]')
def test_any_text_as_a_file_is_settings_or_one_line(text: str) -> None:
    Path("any.toml").write_bytes(text.encode(errors="surrogatepass"))
    said = error_in(["any.toml"], {})
    assert said is None or (said.startswith("any.toml") and said.isprintable())


@given(st.sampled_from([*OPTIONS.values()]), st.text(max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_text_in_a_variable_is_settings_or_one_line(option: Option, text: str) -> None:
    said = error_in(None, {option.variable: text})
    assert said is None or (option.key in said and said.isprintable())


def test_listener_is_the_shape_of_all_sections_with_a_port() -> None:
    sections = {key.partition(".")[0] for key in OPTIONS if key.endswith(".port")}
    every = {section: {"enabled": True} for section in sections} | {"tls": {"certificate": "x"}}
    assert sections == set(msgspec.convert(every, Settings).listeners)
    assert all(isinstance(getattr(Settings(), section), Listener) for section in sections)
