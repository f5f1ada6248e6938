"""Logins that an LDAP server decides: OpenLDAP's slapd, which `tools/get-ldap.sh` fetches."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.top.conftest import Start
from tests.top.running import PATIENCE, Mqtt0, Running
from trellis.parent_process import end_with_parent

FETCHED = Path(__file__).parents[3] / "build" / "tools" / "ldap"
PAGE = (Path(__file__).parents[3] / "docs" / "amqtt-plugins.md").read_text()
SETTINGS = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)[1])
PLUGIN = "trellis.auth.ldap_plugin.LdapAuthPlugin"
ENTRIES = """\
dn: dc=plant
objectClass: dcObject
objectClass: organization
dc: plant
o: plant

dn: uid=ann,dc=plant
objectClass: inetOrgPerson
uid: ann
cn: ann
sn: Lee
userPassword: ann's

dn: uid=twin,dc=plant
objectClass: inetOrgPerson
uid: twin
cn: twin
sn: Lee
userPassword: twin

dn: cn=other,dc=plant
objectClass: inetOrgPerson
uid: twin
cn: other
sn: Lee
userPassword: twin
"""

pytestmark = pytest.mark.long


class Slapd:
    """A process of slapd on a port of 127.0.0.1, whose directory has ENTRIES."""

    def __init__(self, directory: Path) -> None:
        self._program = str(FETCHED / "slapd")
        self._configuration = directory / "slapd.conf"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (directory / "data").mkdir()
        root = FETCHED / "root"
        schemas = "\n".join(
            f"include {root}/etc/ldap/schema/{name}.schema"
            for name in ("core", "cosine", "inetorgperson")
        )
        self._configuration.write_text(
            f"{schemas}\nmodulepath {root}/usr/lib/ldap\nmoduleload back_mdb\n"
            f"pidfile {directory}/slapd.pid\n"
            "allow bind_anon_cred bind_anon_dn\n"  # As servers that accept an empty password.
            "database mdb\nsuffix dc=plant\nrootdn cn=admin,dc=plant\nrootpw secret\n"
            f"directory {directory}/data\n"
        )
        entries = directory / "entries.ldif"
        entries.write_text(ENTRIES)
        subprocess.run(
            [self._program, "-T", "add", "-f", str(self._configuration), "-l", str(entries)],
            check=True,
            capture_output=True,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the server, and wait until its port is open."""
        self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
            [self._program, "-f", str(self._configuration), "-h", self.url, "-d", "0"],
            preexec_fn=end_with_parent,
        )
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)
            self._process = None


@pytest.fixture
def slapd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slapd]:
    if not (FETCHED / "complete").exists():
        pytest.skip("slapd is not installed: run `make ldap`")
    monkeypatch.syspath_prepend(str(FETCHED / "python"))
    server = Slapd(tmp_path)
    yield server
    server.stop()


async def start_with(start: Start, slapd: Slapd) -> Running:
    """Start a broker with the settings of docs/amqtt-plugins.md for this server."""
    options = {
        **SETTINGS["amqtt"]["plugins"][PLUGIN],
        "server": slapd.url,
        "base_dn": "dc=plant",
        "bind_dn": "cn=admin,dc=plant",
        "bind_password": "secret",
    }
    return await start(amqtt={"plugins": {PLUGIN: options}})


async def code_of(running: Running, user: str, password: str) -> int:
    """Return the return code of the CONNACK of MQTT 3.1.1: 0, or 4 if the login is refused."""
    client = Mqtt0(await running.socket("mqtt"))
    return await client.connect("", user=f"{user}/{password}")


async def test_the_ldap_server_decides(start: Start, slapd: Slapd) -> None:
    await slapd.start()
    running = await start_with(start, slapd)
    assert await code_of(running, "ann", "ann's") == 0
    amqp = await running.amqp("ann", "ann's")
    await amqp.queue("q")
    for user, password in (
        ("ann", "wrong"),
        ("ann", ""),
        ("nemo", "ann's"),
        ("*", "ann's"),
        ("a*", "ann's"),
        ("ann)(uid=*", "ann's"),
        ("an\\6e", "ann's"),
        ("twin", "twin"),
    ):
        assert await code_of(running, user, password) == 4, user
    logins = await asyncio.gather(*[code_of(running, "ann", "ann's") for _ in range(30)])
    assert logins == [0] * 30


async def test_logins_work_again_after_the_server_was_away(start: Start, slapd: Slapd) -> None:
    running = await start_with(start, slapd)
    assert await code_of(running, "ann", "ann's") == 4
    await slapd.start()
    assert await code_of(running, "ann", "ann's") == 0
    slapd.stop()
    assert await code_of(running, "ann", "ann's") == 4
    await slapd.start()
    assert await code_of(running, "ann", "ann's") == 0


def test_the_script_fetched_a_complete_server() -> None:
    if not (FETCHED / "complete").exists():
        pytest.skip("slapd is not installed: run `make ldap`")
    assert shutil.which(str(FETCHED / "slapd"))
