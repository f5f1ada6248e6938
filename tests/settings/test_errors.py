"""Tests of the error for an invalid value of a setting: one line, which names the key."""

import re
from pathlib import Path

import msgspec
import pytest

from matching import NAMES
from tests.settings.conftest import HASH, write
from trellis.settings import Amqp, Mqtt, Settings, SettingsError, load
from trellis.settings.checks import problems
from trellis.settings.options import OPTIONS, USER_OPTIONS, Option

# --- one line about each problem ---


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
        f"matcher.allowed: must be a list of one or more of {', '.join(NAMES)}, got an empty list",
    ),
    (
        'matcher.allowed = ["bitmap"]',
        "matcher.allowed: the default algorithm auto is missing from matcher.allowed (bitmap)",
    ),
    ('node.name = "a b"', 'node.name: must be 1 to 255 letters, digits and . _ @ -, got "a b"'),
    ('data.dir = "a\\u0000"', 'data.dir: must be text without NUL, got "a\\x00"'),
    (
        'data.dir = "~no-user-of-this-name/x"',
        "data.dir: needs a home directory, and none is known; set it to an absolute path",
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
    (
        "[[users]]",
        "users[1].name: the key 'name' of this user is missing; set it to the name given at login",
    ),
    (
        '[[users]]\nname = "a"',
        (
            "users[1].password_hash: the key 'password_hash' of this user is missing; set it to "
            "the output of `trellis hash-password`"
        ),
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
        'users: the name "a" is given twice; user names must differ',
    ),
    (
        f'user = "a"\n[[users]]\nname = "a"\npassword_hash = "{HASH}"\n',
        'users: the name "a" is given twice',
    ),
    (
        'user = "a"\npassword = "b"\npassword_file = "c"',
        "password: a password and a password file are given; remove one",
    ),
    (
        'mqtt.anonymous_rules = ["allow publish a/{user}/#"]',
        "mqtt.anonymous_rules: must be a valid rule ('allow publish a/{user}/#': there is no vari",
    ),
    (
        'jwt.topic_rules = ["allow all ${sub}/{clientid}"]',
        "jwt.topic_rules: must be a valid rule ('allow all ${sub}/{clientid}': there is no variab",
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
        "password_file: the first line of empty is empty, and must be the password",
    ),
    ('user = "a"\npassword_file = "binary"', "password_file: binary must be UTF-8 text"),
    (
        "amqp.port = 1883",
        "amqp.port: amqp and mqtt both have port 1883 on 127.0.0.1; give each listener its own",
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
    (
        'tls.names."a.b" = "c.pem"',
        "tls.names: must be a table of tables whose values are text, got a table",
    ),
    (
        'tls.names."a.b".cert = "c.pem"',
        'tls.names: "a.b" has no certificate; set its certificate to a PEM file',
    ),
    (
        'tls.names."a.b" = {certificate = "c", kei = "d"}',
        'tls.names: "a.b" has the unknown key kei; known keys are certificate, key',
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
        'stream.archive = "s3://key:hunter2@bucket/a"',
        "stream.archive: must not contain credentials; set AWS_ACCESS_KEY_ID and ",
    ),
    (
        "jwt.discovery = true",
        "jwt.discovery: for the discovery of keys, the issuer must be a URL such as https://id.",
    ),
    (
        'jwt.aliases = ["a=read:*/* b"]',
        "jwt.aliases: has the scope 'b', which must be a scope such as read:%2F/orders",
    ),
    (
        'cluster.servers = "kafka-1"',
        "cluster.servers: must be HOST:PORT of Kafka nodes, separated by commas, such as ",
    ),
    (
        'cluster.servers = "kafka-1:9092"',
        "cluster.servers: a cluster needs cluster.name; set it to the same name on all of its ",
    ),
    (
        'cluster.name = "my orders"',
        "cluster.name: must be at most 100 letters, digits, dots, underscores and hyphens, such as",
    ),
    (
        'cluster.advertised = "broker-1:5672"',
        "cluster.advertised: must be a host name or an IP address without a port, such as ",
    ),
    (
        "cluster.lease = 4",
        "cluster.lease: silence 3.5 s, lease 4 s and beat 0.3 s do not fit together: twice ",
    ),
    ("cluster.options = 5", "cluster.options: must be a table"),
    (
        'cluster.options.sasl.password = ["hunter2"]',
        'cluster.options: "sasl.password" must be text, a number, true or false',
    ),
    (
        'cluster.options."acks" = "hunter2"',
        'cluster.options: "acks" is fixed by the rules of the replicated log; remove this option',
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


@pytest.mark.parametrize(("text", "error_text"), FILES, ids=[error_text for _, error_text in FILES])
def test_error_in_a_file_is_one_line(text: str, error_text: str) -> None:
    write("empty", "\n")
    Path("binary").write_bytes(b"\xff")
    with pytest.raises(SettingsError) as problem:
        load([write("my.toml", text)], {})
    assert message(problem).startswith(f"my.toml: {error_text}")


BROKEN = [
    (
        b"[amqp]\nport 5\n",
        "my.toml:2: is not valid TOML: expected '=' after a key in a key/value pair",
    ),
    (b"a = '''x\n\n", "my.toml:3: is not valid TOML: "),
    (b"a = " + b"9" * 5000, "my.toml:1: is not valid TOML: "),
    (b"a = " + b"[" * 5000, "my.toml: is not valid TOML: it is nested too deeply"),
    (b"a = '\xff'", "my.toml: the file must be UTF-8 text"),
]


@pytest.mark.parametrize(
    ("data", "error_text"), BROKEN, ids=[error_text for _, error_text in BROKEN]
)
def test_invalid_toml_is_an_error_with_its_line(data: bytes, error_text: str) -> None:
    Path("my.toml").write_bytes(data)
    with pytest.raises(SettingsError) as problem:
        load(["my.toml"], {})
    assert message(problem).startswith(error_text)


def test_error_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as problem:
        load(["gone.toml"], {})
    assert message(problem) == "gone.toml: the file cannot be read (No such file or directory)"
    with pytest.raises(SettingsError) as problem:
        load(environ={"TRELLIS_CONFIG": str(tmp_path)})
    assert message(problem) == f"{tmp_path}: the file cannot be read (Is a directory)"


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
    ("name", "value", "error_text"),
    ENVIRONMENTS,
    ids=[error_text for *_, error_text in ENVIRONMENTS],
)
def test_error_in_a_variable_is_one_line(name: str, value: str, error_text: str) -> None:
    with pytest.raises(SettingsError) as problem:
        load(environ={name: value})
    assert message(problem).startswith(error_text)


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


# --- errors without repeated words ---


INVALID = ["(", "a b", "", "x,y", "rw", "a=", "allow", "allow publish a/#/b", "\0", "\udcff", "?"]


def repeated(text: str) -> str | None:
    """Return the first phrase of one to four words that is in `text` twice in a row, or None."""
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


@pytest.mark.parametrize(
    "error_text",
    [error_text for _, error_text in FILES] + [error_text for *_, error_text in ENVIRONMENTS],
)
def test_no_expected_error_repeats_a_word(error_text: str) -> None:
    assert repeated(error_text) is None
