"""Tests of settings files: the default file, the files in config/, and written settings."""

import functools
import string
import tomllib
from pathlib import Path
from typing import Any, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from broker.names import fault_of
from matching import NAMES
from tests.settings.conftest import HASH, write
from trellis.settings import Listener, Settings, SettingsError, load, load_with_sources
from trellis.settings.checks import problems
from trellis.settings.loading import read_text
from trellis.settings.options import OPTIONS, SECTIONS, USER_OPTIONS, Option
from trellis.settings.rendering import default_file, effective, quantity, render, toml

CONFIG = Path(__file__).parents[2] / "config"


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
        "bridge",
        "users",
        "amqtt.plugins",
        "cluster.options",
        "tls.names",
    }  # The default file shows these settings as examples in comments.


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
    text += '[cluster.options]\nsasl.password = "hunter2"\n'
    environ = {"TRELLIS_USER": "bob", "TRELLIS_PASSWORD": "hunter2", "TRELLIS_AMQP_PORT": "1"}
    printed = effective(*load_with_sources([write("a.toml", text)], environ))
    assert 'password = "********"  # TRELLIS_PASSWORD\n' in printed
    assert "port = 1  # TRELLIS_AMQP_PORT\n" in printed
    assert "heartbeat = 60  # default\n" in printed
    assert '[[users]]  # a.toml\nname = "ann"\npassword_hash = "********"\n' in printed
    assert 'plugins = {"a.B" = {key = "********"}}  # a.toml\n' in printed
    assert 'options = {"sasl.password" = "********"}  # a.toml\n' in printed
    assert "hunter2" not in printed
    assert "argon2id" not in printed
    assert tomllib.loads(printed)["amqp"]["port"] == 1


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if option.secret])
def test_no_secret_is_printed(key: str) -> None:
    option = OPTIONS[key]
    secrets: dict[str, Any] = {"str": "hunter2", "tuple": ["a=hunter2"]}
    secrets["dict"] = {"a.B": {"key": "hunter2"}}
    kind = getattr(get_origin(option.type) or option.type, "__name__", "")
    section = f"[{option.section}]\n" if option.section else 'user = "bob"\n'
    text = f"{section}{option.name} = {toml(secrets[kind])}\n"
    printed = effective(*load_with_sources([write("a.toml", text)], {}))
    assert f"{option.name} = " in printed and "********" in printed
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
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
def test_quantities_have_their_largest_exact_unit(value: object, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown


# --- properties ---


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)

SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "check_addresses": st.lists(st.ip_addresses().map(str), min_size=1, max_size=3).map(",".join),
    "check_archive": st.sampled_from(["", "file:///a b", "s3://b/p?endpoint=http://h:9&region=r"]),
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
    "check_word": st.sampled_from(["orders", "site-1.orders_2"]),
    "check_servers": st.sampled_from(["", "kafka-1:9092", "10.0.0.5:9092, [::1]:9093"]),
    "check_endpoint": st.sampled_from(["", "http://collector:4318", "https://c.example.org/v1"]),
    "check_header": st.sampled_from(["api-key=a b", "authorization=Bearer x="]),
    "check_url": st.sampled_from(["", "https://id.example/keys", "http://127.0.0.1:8080/keys"]),
    "check_alias": st.sampled_from(["admins=tag:administrator", "a=read:*/* write:v/q/k"]),
    "check_scope": st.sampled_from(["tag:management", "read:%2F/amq.topic/plant.${sub}.*"]),
    "check_host": st.sampled_from(["", "broker-1.example.org", "10.0.0.5", "::1"]),
}

#: Ranges of the cluster's times from which every combination is valid.
FITTING = {
    "cluster.silence": st.floats(20, 600),
    "cluster.lease": st.floats(11, 19),
    "cluster.beat": st.floats(0.01, 5),
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
    if option.key == "cluster.options":
        return st.dictionaries(st.sampled_from(["ssl.ca.location", "sasl.username"]), TEXT)
    if option.key in FITTING:
        return FITTING[option.key]
    if option.key in ("rules", "mqtt.anonymous_rules", "jwt.topic_rules"):
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
    if option.key in ("telemetry.headers", "jwt.aliases", "jwt.grants"):
        check = (option.meta.extra or {})["check"]
        return st.lists(SAMPLES[check.__name__], max_size=2).map(tuple)
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


@functools.cache
def values_of(key: str) -> st.SearchStrategy[Any]:
    """Return the strategy of a key's values, made once: making it takes longer than an example."""
    return values(OPTIONS[key])


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    """Return settings with a random value for every key.

    The keys user and password stay empty, because each needs the other.
    """
    tree: dict[str, Any] = {}
    for option in OPTIONS.values():
        if option.section:
            tree.setdefault(option.section, {})[option.name] = draw(values_of(option.key))
        elif option.key == "users":
            tree["users"] = draw(values_of(option.key))
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
    error = error_in(["any.toml"], {})
    assert error is None or (error.startswith("any.toml") and error.isprintable())


@given(st.sampled_from([*OPTIONS.values()]), st.text(max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_text_in_a_variable_is_settings_or_one_line(option: Option, text: str) -> None:
    error = error_in(None, {option.variable: text})
    assert error is None or (option.key in error and error.isprintable())


def test_listener_is_the_shape_of_all_sections_with_a_port() -> None:
    sections = {key.partition(".")[0] for key in OPTIONS if key.endswith(".port")}
    every = {section: {"enabled": True} for section in sections} | {"tls": {"certificate": "x"}}
    assert sections == set(msgspec.convert(every, Settings).listeners)
    assert all(isinstance(getattr(Settings(), section), Listener) for section in sections)
