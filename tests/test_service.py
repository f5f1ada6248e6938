"""Tests of the systemd unit and of the Debian package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.foreign import require

ROOT: Final = Path(__file__).resolve().parent.parent
UNIT: Final = ROOT / "packaging" / "systemd" / "trellis.service"
INSTANCES: Final = UNIT.with_name("instances.sed")
#: The largest exposure that `systemd-analyze security` may find, in tenths of its scale of 10.
EXPOSURE_MAX: Final = 20
PATIENCE: Final = 60.0


def run(*command: str | Path, timeout: float = 600.0) -> str:
    """Run a command, check that it succeeds, and return its output."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_unit_exposes_little_of_the_machine() -> None:
    require("systemd-analyze")
    text = run("systemd-analyze", "security", "--offline=true", "--no-pager", UNIT)
    match = re.search(r"Overall exposure level for trellis.service: ([\d.]+)", text)
    assert match is not None
    assert float(match[1]) * 10 <= EXPOSURE_MAX


@pytest.mark.parametrize("name", ["trellis.service", "trellis@plant-a.service"])
def test_unit_has_only_directives_that_systemd_knows(name: str, tmp_path: Path) -> None:
    require("systemd-analyze")
    unit = tmp_path / name
    text = UNIT.read_text() if name == UNIT.name else template()
    text = text.replace("/usr/bin/trellis", sys.executable)
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert complaints == []


def template() -> str:
    """Return the template unit trellis@.service, made from the unit as in the Debian package."""
    return run("sed", "-f", INSTANCES, UNIT)


def test_each_instance_has_its_own_settings_variables_and_data() -> None:
    text, unit = template().splitlines(), UNIT.read_text().splitlines()
    changed = [line for line in text if line not in unit and not line.startswith("#")]
    assert changed == [
        "Description=Trellis message broker %i (AMQP 0-9-1 and MQTT)",
        "ExecStart=/usr/bin/trellis serve --config /etc/trellis/%i.toml",
        "EnvironmentFile=-/etc/default/trellis-%i",
        "StateDirectory=trellis-%i",
    ]


@contextmanager
def root_directory(path: Path) -> Iterator[Path]:
    """Yield a minimal Debian system in a directory, with /proc mounted."""
    run("debootstrap", "--variant=minbase", "--include=python3,ca-certificates", "bookworm", path)
    shutil.copy("/etc/resolv.conf", path / "etc/resolv.conf")
    for name in ("sources.list", "sources.list.d", "apt.conf.d"):
        own, there = Path("/etc/apt") / name, path / "etc/apt" / name
        if own.is_dir():
            shutil.copytree(own, there, dirs_exist_ok=True)
        elif own.exists():
            shutil.copy(own, there)
    run("mount", "-t", "proc", "proc", path / "proc")
    try:
        yield path
    finally:
        run("umount", path / "proc")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chroot")
def test_debian_package_installs_serves_and_is_removed_without_a_trace(tmp_path: Path) -> None:
    require("debootstrap")
    python = shutil.which("python3", path="/usr/bin")
    assert python is not None
    version = run(python, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    if version != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the tests run on another Python than Debian's {version}")
    run(
        *("env", "TRELLIS_PURE=1", sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
        *("--wheel-dir", tmp_path, ROOT),
    )
    (wheel,) = tmp_path.glob("*.whl")
    run(
        *("env", f"PIP={sys.executable} -m pip"),
        *("sh", ROOT / "packaging/debian/build.sh", wheel, tmp_path / "packages"),
    )
    (package,) = (tmp_path / "packages").glob("trellis-broker_*.deb")
    with root_directory(tmp_path / "root") as root:
        shutil.copy(package, root / "tmp/trellis.deb")
        install = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "-qq")
        run("chroot", root, "apt-get", "update", "-qq")
        run("chroot", root, *install, "--no-install-recommends", "/tmp/trellis.deb")
        assert "0.1.0" in run("chroot", root, "trellis", "version")
        assert (root / "lib/systemd/system/trellis.service").exists()
        assert (root / "lib/systemd/system/trellis@.service").read_text() == template()
        assert (root / "etc/systemd/system/multi-user.target.wants/trellis.service").is_symlink()
        assert run("chroot", root, "stat", "-c", "%U %G %a", "/etc/default/trellis").split() == [
            *("root", "root", "600")
        ]
        serve_once(root)
        run("chroot", root, "apt-get", "purge", "--yes", "-qq", "trellis-broker")
        for left in ("usr/lib/trellis", "usr/bin/trellis", "etc/trellis", "var/lib/trellis"):
            assert not (root / left).exists(), left


def serve_once(root: Path) -> None:
    """Serve as the user of the package, publish a message to a queue, peek at it, and stop."""
    run("chroot", root, "install", "-d", "-o", "trellis", "-m", "700", "/var/lib/trellis")
    words = ["chroot", "--userspec=trellis:trellis", str(root), "trellis", "serve"]
    ports = [f"--{name}-port=0" for name in ("amqp", "mqtt", "metrics", "http")]
    flags = ["--config", "/etc/trellis/broker.toml", *ports, "--http-enabled", "true"]
    with (root / "tmp/log").open("w") as log:
        broker = subprocess.Popen([*words, *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            assert ready.startswith("ready "), (root / "tmp/log").read_text()
            addresses = dict(word.split("=") for word in ready.split()[1:])
            trellis = ("chroot", root, "trellis")
            url = ("--url", f"http://{addresses['http']}")
            run(*trellis, "queues", "declare", "orders", *url)
            run(*trellis, "publish", "amq.default", "orders", "--body", "hello", *url)
            assert "hello" in run(*trellis, "peek", "orders", *url)
        finally:
            broker.terminate()
            assert broker.wait(PATIENCE) == 0
    assert list((root / "var/lib/trellis").iterdir())
