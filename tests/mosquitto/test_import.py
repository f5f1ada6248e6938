"""`trellis import mosquitto`: listeners, settings, files and notes."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import argon2
import pytest

from tests.mosquitto.hashes import mosquitto_hash
from tests.top.running import Mqtt0, Running, Socket
from trellis.cli import main
from trellis.mosquitto.importing import MosquittoImport
from trellis.mosquitto.options import OPTIONS
from trellis.mosquitto.report import DIFFERS, NOT_NEEDED, NOT_TAKEN
from trellis.settings import load

TLS = "certfile /c.pem\nkeyfile /k.pem\ncafile /ca.pem\n"


def imported(folder: Path, conf: str, **files: str) -> MosquittoImport:
    """Import a mosquitto.conf with the text `conf`, and check that the settings are valid.

    `files` are the names and texts of further files in the folder.
    """
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "mosquitto.conf").write_text(conf)
    result = MosquittoImport(folder / "mosquitto.conf")
    (folder / "broker.toml").write_text(result.settings_text(folder / "definitions.json"))
    load([folder / "broker.toml"], {})
    return result


def notes(result: MosquittoImport, kind: str = NOT_TAKEN) -> list[tuple[int, str]]:
    """Return line number and text of the notes of one kind."""
    return [(note.place.number, note.text) for note in result.report.notes if note.kind == kind]


def test_without_a_listener_only_this_machine_connects(tmp_path: Path) -> None:
    tables = imported(tmp_path, "# nothing\n").tables
    assert tables["mqtt"] == {
        "host": "127.0.0.1,::1",
        "port": 1883,
        "session_expiry": 4_294_967_295,
        "anonymous": "loopback",
    }
    assert tables["auth"] == {"guest": False}


def test_listeners_become_the_ports_of_each_protocol(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        "listener 1883 10.0.0.1\nlistener 1883 10.0.0.2\n"
        "listener 0 /run/mosquitto.sock\n"
        f"listener 8883\n{TLS}require_certificate true\nuse_identity_as_username true\n"
        "crlfile /crl.pem\ntls_version tlsv1.3\n"
        "listener 9001\nprotocol websockets\nwebsockets_origin https://a.example\n"
        f"listener 9002 ::1\nprotocol websockets\nsocket_domain ipv6\n{TLS}",
    )
    tables = result.tables
    assert tables["mqtt"] == {
        "enabled": True,
        "port": 1883,
        "host": "10.0.0.1,10.0.0.2",
        "socket": "/run/mosquitto.sock",
        "session_expiry": 4_294_967_295,
        "anonymous": "false",
    }
    assert tables["mqtts"] == {
        "enabled": True,
        "port": 8883,
        "host": "0.0.0.0,::",
        "client_certificate": "required",
        "certificate_user": True,
    }
    assert tables["ws"]["origins"] == "https://a.example" and tables["ws"]["path"] == "/mqtt"
    assert (tables["wss"]["host"], tables["wss"]["port"]) == ("::1", 9002)
    assert tables["tls"] == {
        "certificate": "/c.pem",
        "key": "/k.pem",
        "ca": "/ca.pem",
        "crl": "/crl.pem",
        "minimum": "1.3",
    }
    assert notes(result) == []


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ("listener 1883\nlistener 1884\n", "listener 1884"),
        ("listener 1883\nlistener 1884\nmount_point site/\n", "listener 1884"),
        ("listener 1883\nlistener 1884\npsk_hint x\n", "listener 1884"),
        ("listener 1883\nlistener 80\nprotocol http_api\n", "listener 80"),
        ("listener 1883\nlistener 1884 broker.example\n", "listener 1884 broker.example"),
        ("listener 1883\nlistener many\n", "listener many"),
        (
            (
                f"listener 8883\n{TLS}listener 9002\nprotocol websockets\n"
                "certfile /other.pem\nkeyfile /k.pem\n"
            ),
            "certfile /other.pem",
        ),
        (f"listener 8883\n{TLS}use_subject_as_username true\n", "use_subject_as_username true"),
        ("listener 0 /run/mosquitto.sock\n", "a Unix socket without a port"),
        ("listener 1883\nunknown_option 7\n", "unknown_option ..."),
        ("listener 1883\nsys_interval often\n", "sys_interval often"),
        ("persistent_client_expiration 7\n", "persistent_client_expiration 7"),
        ("connection b\ntopic # both\nremote_password secret\n", "connection b"),
        ("connection b\naddress x\n", "connection b"),
        ("connection b\naddress x\ntopic #/a out\ntopic a\n", "topic #/a out"),
        ("connection b\naddress x\ntopic a\nbridge_psk secret\n", "bridge_psk ..."),
        ("plugin /usr/lib/own.so\nplugin_opt_key v\n", "plugin /usr/lib/own.so"),
        ("listener 1883\nplugin_use none\n", "plugin_use none"),
        ("password_file missing\n", "password_file missing"),
        ("include_dir missing\n", "include_dir missing"),
        ("listener 1883\nallow_anonymous true\npassword_file pw\n", "password of user 'plain'"),
        ("allow_zero_length_clientid false\n", "allow_zero_length_clientid false"),
        ("queue_qos0_messages true\n", "queue_qos0_messages true"),
        ("use_username_as_clientid true\n", "use_username_as_clientid true"),
    ],
)
def test_a_line_that_cannot_be_taken_is_named(tmp_path: Path, conf: str, line: str) -> None:
    result = imported(tmp_path, conf, pw="plain:word\n")
    named = [text for _, text in notes(result)]
    assert line in named
    assert not [text for text in named if "secret" in text]
    if line.startswith("listener 1884"):
        assert result.tables["mqtt"]["port"] == 1883
    assert all(note.reason for note in result.report.notes)


def test_bridges_become_tables(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        "listener 1883\nconnection one\naddress broker.example:8884\naddresses other\n"
        'topic a/# both 2 "" r/\ntopic b in\nbridge_cafile ca.pem\nremote_username u\n'
        "remote_password secret\nkeepalive_interval 60\nbridge_receive_maximum 99999\n"
        "cleansession false\nnotifications false\nlocal_username l\n"
        "connection two\naddress ::1\ntopic #\nclientid c\n"
        "bridge_protocol_version mqttv311\nbridge_max_packet_size 2000\n",
    )
    assert result.bridges == [
        {
            "name": "one",
            "remote": "mqtts://broker.example:8884",
            "topics": ['a/# both 2 "" r/', "b in"],
            "ca": str(tmp_path / "ca.pem"),
            "remote_user": "u",
            "remote_password": "secret",
            "local_user": "l",
            "window": 10_000,
            "keep_alive": 60,
        },
        {
            "name": "two",
            "remote": "mqtt://[::1]:1883",
            "topics": ["#"],
            "client_id": "c",
            "remote_protocol": "3.1.1",
            "remote_packet_max": 2_000,
        },
    ]
    assert not notes(result)
    assert "secret" not in str(result.report.notes)


@pytest.mark.parametrize("name", [name for name in OPTIONS if not name.endswith("*")])
def test_each_option_is_taken_or_named(tmp_path: Path, name: str) -> None:
    """If Trellis lacks or does not need an option, a note names the option and the reason."""
    option = OPTIONS[name]
    result = imported(tmp_path, f"listener 1883\n{name} xyz\n")
    named = [note for note in result.report.notes if note.text.startswith(name)]
    if option.verdict == "missing":
        assert [note.kind for note in named if note.kind == NOT_TAKEN]
    if option.verdict == "not needed":
        assert [note.kind for note in named] == [NOT_NEEDED]
    assert all(note.reason and "`address`" not in note.reason for note in named)


def test_values_that_are_defaults_need_no_note(tmp_path: Path) -> None:
    lines = [
        f"{option.name} {value}"
        for option in OPTIONS.values()
        for value in option.defaults
        if option.name not in ("protocol",) and not option.of_listener
    ]
    result = imported(tmp_path, "\n".join([*lines, "listener 1883"]) + "\n")
    assert [note.text for note in result.report.notes] == []


def test_settings_of_general_options(tmp_path: Path) -> None:
    tables = imported(
        tmp_path,
        "sys_interval 60\nmax_inflight_messages 0\nmax_queued_messages 0\nmax_packet_size 20\n"
        "max_keepalive 600\nmessage_size_limit 1000\npersistent_client_expiration 2w\n"
        "persistence false\nlog_type error\nlog_type warning\nretain_available false\n"
        "global_max_connections 70\nglobal_max_clients 80\nlistener 1883\nmax_topic_alias 3\n"
        "allow_anonymous true\n",
    ).tables
    assert tables["mqtt"] == {
        "enabled": True,
        "port": 1883,
        "host": "0.0.0.0,::",
        "topic_alias_maximum": 3,
        "sys_interval": 60,
        "receive_maximum": 65_535,
        "session_backlog": 1_000_000_000,
        "max_packet": 256,
        "keep_alive_max": 600,
        "session_expiry": 1_209_600,
        "sessions": 80,
        "retained": 0,
        "anonymous": "true",
    }
    assert tables["limits"] == {"message": 1000, "connections": 70}
    assert (tables["data"], tables["log"]) == ({"dir": ":memory:"}, {"level": "warning"})


@pytest.mark.parametrize(
    ("conf", "verdict"),
    [
        ("listener 1883\n", "false"),
        ("listener 1883\nallow_anonymous true\n", "true"),
        ("listener 1883 127.0.0.1\nallow_anonymous true\n", "loopback"),
        ("allow_anonymous false\n", "false"),
        ("port 1883\n", "false"),
        (
            (
                "per_listener_settings true\nlistener 1883 localhost\nallow_anonymous true\n"
                f"listener 8883\n{TLS}allow_anonymous false\n"
            ),
            "loopback",
        ),
        (
            (
                "per_listener_settings true\nlistener 1883\nallow_anonymous true\n"
                f"listener 8883\n{TLS}"
            ),
            "false",
        ),
        (
            f"listener 1883\nlistener_allow_anonymous true\nlistener 8883\n{TLS}",
            "false",
        ),
        # The listener on loopback is not imported, so no client without a user name may connect to
        # it.
        (
            (
                "per_listener_settings true\nlistener 1883\n"
                "listener 1884 localhost\nallow_anonymous true\n"
            ),
            "false",
        ),
        (
            (
                "per_listener_settings true\nlistener 1883\n"
                "listener 1884 localhost\nprotocol http_api\nallow_anonymous true\n"
            ),
            "false",
        ),
        (
            (
                "per_listener_settings true\nlistener 1883\nallow_anonymous true\n"
                "listener 1884\nmount_point a/\n"
            ),
            "true",
        ),
    ],
)
def test_anonymous_clients_get_in_only_where_all_listeners_let_them(
    tmp_path: Path, conf: str, verdict: str
) -> None:
    assert imported(tmp_path, conf).tables["mqtt"]["anonymous"] == verdict


@pytest.mark.parametrize(
    "line",
    [
        "remote_passwrd s3cret",
        "remote_password\ts3cret",
        "auth_opt_pg_password s3cret",
        "plugin_opt_mysql_pass s3cret",
        "tls_engine_kpass_sha1 s3cret",
        "plugin /p.so\nplugin_opt_pass s3cret",
        "plugin /p.so\nplugin_opt_\ts3cret",
    ],
)
def test_no_note_shows_a_secret(tmp_path: Path, line: str) -> None:
    result = imported(tmp_path, f"listener 1883\n{line}\n")
    assert notes(result)
    assert not [note for note in result.report.notes if "s3cret" in str(note)]


def test_a_listener_with_other_users_is_not_taken(tmp_path: Path) -> None:
    hashed = mosquitto_hash(b"x", b"s" * 12, 101)
    result = imported(
        tmp_path,
        "per_listener_settings true\nlistener 1883\npassword_file one\n"
        "listener 9001\nprotocol websockets\npassword_file two\n",
        one=f"ann:{hashed}\n",
        two=f"bob:{hashed}\n",
    )
    assert [user["name"] for user in result.definitions["users"]] == ["ann"]
    assert result.tables["ws"] == {"enabled": False}
    assert notes(result) == [(4, "listener 9001")]


def test_plugins_of_mosquitto_2_1_are_read(tmp_path: Path) -> None:
    hashed = mosquitto_hash(b"x", b"s" * 64, 1000)
    result = imported(
        tmp_path,
        "plugin_load passwords /usr/lib/mosquitto_password_file.so\n"
        "plugin_opt_password_file pw\n"
        "plugin_load rights /usr/lib/mosquitto_acl_file.so\nplugin_opt_acl_file acl\n"
        "global_plugin /usr/lib/mosquitto_persist_sqlite.so\n"
        "listener 1883\nplugin_use passwords\nplugin_use rights\n",
        pw=f"ann:{hashed}\n",
        acl="user ann\ntopic read a/#\n",
    )
    assert result.definitions["users"][0]["password_hash"] == hashed
    assert result.definitions["topic_rules"] == [
        {"user": "ann", "vhost": "/", "rules": ["deny all $+/#", "allow subscribe a/#"]}
    ]
    assert notes(result) == [] and len(notes(result, NOT_NEEDED)) == 1


def test_files_of_include_dir_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for name, interval in (("b.conf", 3), ("A.conf", 1), ("a.conf", 2), ("c.txt", 9)):
        (folder / name).write_text(f"sys_interval {interval}\n")
    result = imported(tmp_path, "sys_interval 7\ninclude_dir conf.d\n")
    assert result.tables["mqtt"]["sys_interval"] == 3


@pytest.mark.parametrize("acl", ["missing", "broken"])
def test_rights_that_cannot_be_read_permit_nothing(tmp_path: Path, acl: str) -> None:
    hashed = mosquitto_hash(b"x", b"s" * 12, 101)
    (tmp_path / "broken").write_bytes(b"user ann\ntopic \xff\n")
    result = imported(
        tmp_path,
        f"listener 1883\nallow_anonymous true\npassword_file pw\nacl_file {acl}\n",
        pw=f"ann:{hashed}\n",
    )
    assert result.definitions["topic_rules"][0]["rules"] == ["deny all #"]
    assert result.tables["mqtt"]["anonymous_rules"] == ["deny all #"]
    assert notes(result) == [(4, f"acl_file {acl}")]


def test_a_dynamic_security_file_that_cannot_be_read_permits_nothing(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        "listener 1883\nallow_anonymous true\n"
        "plugin /usr/lib/mosquitto_dynamic_security.so\nplugin_opt_config_file dynamic.json\n",
        **{"dynamic.json": "{"},
    )
    assert result.tables["mqtt"]["anonymous_rules"] == ["deny all #"]
    assert notes(result) == [(4, "plugin_opt_config_file dynamic.json")]


def test_import_reports_parts_of_dynamic_security_that_rules_lack(tmp_path: Path) -> None:
    _, _, iterations, salt, password = mosquitto_hash(b"x", b"s" * 12, 101).split("$")
    acls = [
        ("unsubscribePattern", "#", False),
        ("publishClientSend", "$CONTROL/dynamic-security/#", True),
        ("subscribePattern", "$share/g/a/#", True),
        ("subscribeLiteral", "#", False),
        ("subscribeLiteral", "a/+", True),
    ]
    document: dict[str, Any] = {
        "clients": [
            {
                "username": "ann",
                "clientid": "dev1",
                "salt": salt,
                "password": password,
                "iterations": int(iterations),
                "roles": [{"rolename": "r"}],
            },
            {"username": "off", "disabled": True},
            {"username": "new", "encoded_password": mosquitto_hash(b"y", b"s" * 64, 1000)},
        ],
        "roles": [
            {
                "rolename": "r",
                "allowwildcardsubs": False,
                "acls": [{"acltype": k, "topic": t, "allow": a} for k, t, a in acls],
            }
        ],
        "defaultACLAccess": {"publishClientReceive": True, "unsubscribe": False},
    }
    result = imported(
        tmp_path,
        "listener 1883\nplugin /usr/lib/mosquitto_dynamic_security.so\n"
        "plugin_opt_config_file dynamic.json\n",
        **{"dynamic.json": json.dumps(document)},
    )
    texts = [text for _, text in notes(result)]
    for expected in (
        "role 'r' unsubscribePattern #",
        "role 'r' publishClientSend $CONTROL/dynamic-security/#",
        "role 'r' subscribePattern $share/g/a/#",
        "role 'r' subscribeLiteral #",
        "role 'r' allowwildcardsubs false",
        "client 'ann' clientid dev1",
        "defaultACLAccess unsubscribe",
    ):
        assert expected in texts
    differing = [text for _, text in notes(result, DIFFERS)]
    assert differing == ["role 'r' subscribeLiteral a/+", "client 'off' disabled"]
    hashes = {user["name"]: user["password_hash"] for user in result.definitions["users"]}
    assert hashes["off"] == "" and hashes["new"].startswith("$7$1000$")
    assert hashes["ann"] == mosquitto_hash(b"x", b"s" * 12, 101)


async def test_the_command_writes_files_with_which_clients_log_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pw").write_text(
        f"ann:{mosquitto_hash(b'one', b's' * 12, 0)}\n"
        f"bob:{mosquitto_hash(b'two', b's' * 12, 101)}\n"
        f"cat:{argon2.PasswordHasher(1, 47_104, 1, 64, 64).hash('three')}\n"
    )
    (tmp_path / "mosquitto.conf").write_text("listener 1883 127.0.0.1\npassword_file pw\n")
    output = tmp_path / "new"
    command = ["import", "mosquitto", str(tmp_path), "--output", str(output)]
    assert main(command) == 0
    assert "3 users; lines of Mosquitto's files: 0 not taken, " in capsys.readouterr().err
    for name in ("broker.toml", "definitions.json"):
        assert stat.S_IMODE((output / name).stat().st_mode) == 0o600
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["settings"], answer["users"]) == (str(output / "broker.toml"), 3)
    assert {note["kind"] for note in answer["notes"]} <= {"differs", "not needed"}
    tomllib.loads((output / "broker.toml").read_text())
    flags = {f"{name}.enabled": "false" for name in ("amqp", "http", "metrics")}
    flags |= {"mqtt.port": "0", "data.dir": ":memory:", "shutdown.grace": "0.05"}
    running = Running(load([output / "broker.toml"], {}, flags))
    await running.start()
    try:
        for words, code in (
            ("ann/one", 0),
            ("bob/two", 0),
            ("cat/three", 0),
            ("ann/two", 4),
            ("", 5),
        ):
            client = Mqtt0(await Socket.connect(running.port("mqtt")))
            assert await client.connect("c", user=words) == code, words
            if code == 0:
                await client.leave()
    finally:
        await running.stop()


def test_the_command_names_settings_that_conflict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mosquitto.conf").write_text("listener 15672 127.0.0.1\nmax_qos 1\n")
    assert main(["import", "mosquitto", str(tmp_path), "--output", str(tmp_path / "new")]) == 2
    out, err = capsys.readouterr()
    assert "max_qos 1" in out and "both have port 15672" in err


def test_the_command_fails_without_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "mosquitto", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_booleans_and_numbers_end_at_a_space(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        "listener 1883\nallow_anonymous true  # for the lamps\npassword_file pw # not a comment\n"
        "sys_interval 20 # seconds\nretain_available false #\npersistence true # default\n",
        **{"pw # not a comment": f"ann:{mosquitto_hash(b'x', b's' * 12, 101)}\n"},
    )
    assert result.tables["mqtt"]["anonymous"] == "true"
    assert (result.tables["mqtt"]["sys_interval"], result.tables["mqtt"]["retained"]) == (20, 0)
    assert [user["name"] for user in result.definitions["users"]] == ["ann"]
    assert notes(result) == []
    assert notes(result, DIFFERS) == [(5, "retain_available false")]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    hashed = mosquitto_hash(b"x", b"s" * 12, 101)
    result = imported(
        tmp_path,
        "listener 1883\nallow_anonymous true\npassword_file pw\nacl_file acl\n"
        "# a\x0blistener 1884\n",
        pw=f"ann\u2028bob:{hashed}\n# c\x85carl:{hashed}\n",
        acl="topic read a\x85/b\n# c\x0ctopic read secret/#\n",
    )
    assert [user["name"] for user in result.definitions["users"]] == ["ann\u2028bob"]
    assert result.tables["mqtt"]["anonymous_rules"] == [
        "deny all $+/#",
        "allow subscribe a\x85/b",
    ]
    assert notes(result) == []
