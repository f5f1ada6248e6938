"""Tests of failed starts: a start prints one line about the problem, and leaves no files."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.broker import BrokerProcess
from tests.top.conftest import Start
from tests.top.running import KNOWN, settings
from trellis.auth.settings_users import GENERATED_USER_FILE, authenticator_from_settings
from trellis.server.listener import ListenError, bind
from trellis.settings import Amqp, Settings, SettingsError

#: Capabilities that let root do what others may not: write anywhere, read anything, take any port.
_CAPABILITIES: Final = (1, 2, 10)
_PR_CAPBSET_DROP: Final = 24


def as_anybody() -> None:
    """Drop root's privileges in the child, for tests that run as root."""
    if os.geteuid() == 0 and sys.platform == "linux":
        for capability in _CAPABILITIES:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run `trellis serve` with settings that cannot work, and return the ended process."""
    ports = ["--amqp-port", "0", "--mqtt-port", "0", "--metrics-port", "0", "--http-port", "0"]
    command = [
        sys.executable,
        "-m",
        "trellis",
        "serve",
        "--config",
        os.devnull,
        "--data-dir",
        ":memory:",
        *ports,
        *flags,
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")
    }
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=30, preexec_fn=as_anybody
    )


def complaint(*flags: str) -> str:
    """Return the one line that a failed start prints before it ends with exit code 2."""
    ended = serve(*flags)
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.returncode == 2
    return ended.stderr.rstrip("\n")


@contextmanager
def taken(address: str = "127.0.0.1") -> Iterator[int]:
    """Listen on a free port during the `with` body, and yield the port."""
    with socket.create_server(
        (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    ) as sock:
        yield sock.getsockname()[1]


def test_matcher_of_an_unsuitable_package_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_party.py").write_text("")
    about = tmp_path / "third_party-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[trellis.matchers]\nthird = third_party:Third\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / "broker.toml"
    file.write_text('matcher.allowed = ["auto", "third"]')
    assert complaint("--config", str(file)) == (
        f"trellis: {file}: matcher.allowed: the algorithm third cannot be loaded: third_party has "
        "no class 'Third', but package third-party names it as the matcher third "
        "(trellis.matchers); install a compatible version of that package; or remove the algorithm "
        "from the list"
    )


def test_port_in_use_is_reported_with_a_remedy() -> None:
    with taken() as port:
        error = complaint("--mqtt-host", "127.0.0.1", "--mqtt-port", str(port))
    assert error == (
        f"trellis: mqtt: 127.0.0.1 port {port} is in use; stop the program that has it, or set "
        "mqtt.port "
        "(TRELLIS_MQTT_PORT, --mqtt-port)"
    )


def test_address_of_another_machine_is_reported_with_a_remedy() -> None:
    error = complaint("--amqp-host", "192.0.2.1")
    assert (
        error == "trellis: amqp: 192.0.2.1 is not an address of this machine; "
        "set amqp.host (TRELLIS_AMQP_HOST, --amqp-host)"
    )


def test_privileged_port_is_reported_with_a_remedy() -> None:
    unprivileged = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not unprivileged.exists() or int(unprivileged.read_text()) <= 7:
        pytest.skip("on this machine, every user may listen on every port")
    error = complaint("--metrics-host", "127.0.0.1", "--metrics-port", "7")
    assert error == (
        "trellis: metrics: 127.0.0.1 port 7 may not be used by the broker's user; set metrics."
        "port (TRELLIS_METRICS_PORT, --metrics-port) to a port above 1023"
    )


def cannot_be_written(directory: Path) -> str:
    directory.chmod(0o500)
    return str(directory)


def is_a_file(directory: Path) -> str:
    path = directory / "file"
    path.touch()
    return str(path)


def is_below_a_file(directory: Path) -> str:
    return is_a_file(directory) + "/below"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (cannot_be_written, "Permission denied"),
        (is_a_file, "File exists"),
        (is_below_a_file, "Not a directory"),
    ],
)
def test_unwritable_data_directory_is_reported_with_a_remedy(
    make: Callable[[Path], str], why: str, tmp_path: Path
) -> None:
    directory = make(tmp_path)
    assert complaint("--data-dir", directory) == (
        f"trellis: data.dir: {directory} cannot be written to: {why}; make it writable for this "
        "user, or set data.dir "
        "(TRELLIS_DATA_DIR, --data-dir)"
    )


def test_an_unreadable_password_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0)
    error = complaint("--user", "admin", "--password-file", str(file))
    assert (
        error
        == f"trellis: --password-file: password_file: {file} cannot be read (Permission denied)"
    )


BAD_FILES: Final = {
    "empty": b"",
    "no JSON": b"guest:guest",
    "no object": b"[]",
    "no hash": b'{"name": "trellis"}',
    "hash that is no text": b'{"name": "trellis", "password_hash": 5}',
    "hash that is none": b'{"name": "trellis", "password_hash": "secret"}',
    "no UTF-8": b'{"name": "\xff", "password_hash": ""}',
    "deep": b'{"deep": ' + b"[" * 100_000,
}


def without_users(directory: Path) -> Settings:
    return settings(data={"dir": str(directory)}, users=[])


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_broken_file_of_the_generated_user_is_reported_with_a_remedy(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / GENERATED_USER_FILE).write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        authenticator_from_settings(without_users(tmp_path), tmp_path)
    error = str(raised.value)
    assert error.startswith(f"{tmp_path / GENERATED_USER_FILE}: ")
    assert error.endswith("; delete the file to get a new password")
    assert "\n" not in error
    assert "secret" not in error


def test_a_broken_file_of_the_generated_user_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / GENERATED_USER_FILE).write_bytes(b"{")
    error = complaint("--data-dir", str(tmp_path), "--auth-guest", "false")
    assert error.startswith(f"trellis: {tmp_path / GENERATED_USER_FILE}: ")


async def test_port_in_use_closes_all_other_ports(start: Start) -> None:
    with taken() as free:
        pass
    with (
        taken() as port,
        pytest.raises(ListenError, match=rf"^http: 127\.0\.0\.1 port {port} is in use"),
    ):
        await start(amqp={"port": free}, http={"port": port})
    with socket.create_server(("127.0.0.1", free)):
        pass


async def test_a_stop_gives_all_ports_back(start: Start) -> None:
    running = await start()
    await running.stop()
    for listener in ("amqp", "mqtt", "metrics", "http"):
        with socket.create_server(("127.0.0.1", running.port(listener))):
            pass


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_a_free_port_is_the_same_on_every_address() -> None:
    bound = bind("amqp", Amqp(port=0, host="127.0.0.1,::1"))
    assert len({sock.getsockname()[1] for sock in bound.sockets}) == 1
    assert bound.address.startswith("127.0.0.1:")
    bound.close()


def test_an_address_that_this_machine_lacks_is_left_out_beside_one_that_it_has() -> None:
    bound = bind("amqp", Amqp(port=0, host="192.0.2.1,127.0.0.1"))
    assert [sock.getsockname()[0] for sock in bound.sockets] == ["127.0.0.1"]
    bound.close()


NO_REMOTE_USER: Final = (
    'no_remote_user listeners=amqp note="clients of other machines can connect, but no user may '
    "log in from there; add one: `trellis users add NAME`, then "
    "`trellis permissions set NAME '.*' '.*' '.*'`\""
)
LOCAL: Final = (
    'reachable clients="this machine" note="the listeners for clients are on loopback; '
    'set amqp.host and mqtt.host to serve other machines"'
)


@pytest.mark.parametrize(
    ("host", "local_user", "line"),
    [
        ("127.0.0.1", False, LOCAL),
        ("0.0.0.0", False, 'reachable clients="all machines" listeners=amqp'),
        ("0.0.0.0", True, NO_REMOTE_USER),
    ],
)
async def test_the_log_says_whether_clients_of_other_machines_can_log_in(
    start: Start, caplog: pytest.LogCaptureFixture, host: str, local_user: bool, line: str
) -> None:
    caplog.set_level("INFO")
    user = {**KNOWN, "loopback_only": local_user}
    await start(amqp={"port": 0, "host": host}, users=[user])
    assert [text for text in caplog.messages if "reachable" in text or "remote_user" in text] == [
        line
    ]


def test_the_log_names_the_settings_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("[log]\nlevel = 'info'\n")
    second.write_text("")
    broker = BrokerProcess("--config", str(first), "--config", str(second))
    assert f" settings={os.devnull},{first},{second} " in broker.log
    broker.stop()


async def test_listeners_that_are_not_enabled_are_not_there(start: Start) -> None:
    running = await start(amqp={"enabled": False}, http={"enabled": False})
    assert list(running.app.addresses) == ["mqtt", "metrics"]
    assert (await running.get("metrics", "/readyz"))[0] == 200
