"""RabbitMQ's Java client tests Trellis: the functional and server tests of its source package.

The tests are fetched as a source package of Debian (tools/get-java-client-tests.sh); Maven Central
has the client and the libraries. The tests expect a broker at port 5672, so some expressions in
them are replaced by the port of the test's own broker. They also expect RabbitMQ's Makefile and
rabbitmqctl, whose place `Control` takes.

A test here fails if a test of the suite that is not in EXPECTED fails, or if a test in EXPECTED
passes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from tests.javasuite.control import Control

HERE = Path(__file__).parent
FETCH = HERE.parents[1] / "tools" / "get-java-client-tests.sh"
#: The Java package that has the tests.
PACKAGE: Final = "com.rabbitmq.client.test"
#: Seconds for the tests of one package, most of which wait for time to pass.
PATIENCE: Final = 600

_PORT = f"{PACKAGE}.LocalFactory.PORT"
#: Regular expression -> replacement in the fetched tests. The last replacement lets tests that
#: connect to a second node of a cluster (port 5673) use port 1, where no server listens.
REPLACED: Final = {
    r"\b(new|extends) ConnectionFactory\b": rf"\1 {PACKAGE}.LocalFactory",
    r'new Address\("127.0.0.1"(, 5672)?\)': f'new Address("127.0.0.1", {_PORT})',
    r"AMQP\.PROTOCOL\.PORT": _PORT,
    r"setPort\(5673\)": "setPort(1)",
}

#: The tests that fail, and the reasons.
EXPECTED: Final = {
    "functional.DeadLetterExchange.republish": (
        "x-death of a publisher is no history, as in RabbitMQ 4; RabbitMQ 3 counted on in it"
    ),
    "server.XDeathHeaderGrowth.handlingOfXDeathHeadersFromEarlierVersions": (
        "x-death of a publisher is no history, as in RabbitMQ 4; RabbitMQ 3 counted on in it"
    ),
    "functional.QosTests.noAckObeysLimit": (
        "a consumer without acknowledgements does not wait for the global prefetch count"
    ),
    "functional.FrameMax.rejectLargeFramesDuringConnectionNegotiation": (
        "a frame before the login may have up to 64 KiB, because a token may be long"
    ),
    "server.ChannelLimitNegotiation.openingTooManyChannels": (
        "rabbitmqctl eval: amqp.channel_max cannot be changed while the broker runs"
    ),
    "server.ChannelLimitNegotiation.channelMaxGreaterThanServerValue": (
        "rabbitmqctl eval: amqp.channel_max cannot be changed while the broker runs"
    ),
    "server.Firehose.firehose": "amq.rabbitmq.trace does not exist: journals take its place",
    "server.LoopbackUsers.loopback": (
        "rabbitmqctl eval; and the broker of a test listens on loopback only"
    ),
}

#: Classes that are not run, and why.
LEFT_OUT: Final = {
    "server.MemoryAlarms": (
        "the first publication after an alarm began is still delivered; the test fails, and then"
        " waits without end for the answer to connection.close on its blocked connection"
    ),
    "server.HATests": "runs the other tests on mirrored queues of a cluster",
}


class Compiled(NamedTuple):
    """The compiled tests: their sources, and the class path with the libraries."""

    sources: Path
    class_path: str

    def classes_of(self, group: str) -> list[str]:
        """Return the names of the classes of a package below PACKAGE."""
        directory = self.sources.joinpath(*PACKAGE.split("."), group)
        names = [f"{group}.{path.stem}" for path in directory.glob("*.java")]
        return sorted(f"{PACKAGE}.{name}" for name in names if name not in LEFT_OUT)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Fetch and compile the tests, in a directory of this process."""
    maven = require("mvn")
    fetched = BUILT / "java-client"
    subprocess.run([FETCH, fetched], check=True)
    if not fetched.is_dir():
        pytest.skip("the source package rabbitmq-java-client of Debian cannot be downloaded")
    directory = tmp_path_factory.mktemp("javasuite")
    sources, built = directory / "sources", directory / "built"
    shutil.copytree(fetched / "src" / "test" / "java", sources)
    for path in sources.rglob("*.java"):
        text = path.read_text()
        for expression, replacement in REPLACED.items():
            text = re.sub(expression, replacement, text)
        path.write_text(text)
    shutil.copy(HERE / "java" / "RunSuite.java", sources)
    shutil.copy(HERE / "java" / "LocalFactory.java", sources.joinpath(*PACKAGE.split(".")))
    libraries = built / "class-path"
    build(
        [
            *(maven, "-q", "-B", f"-Dsources={sources}", f"-DbuildDirectory={built}"),
            *("compile", "dependency:build-classpath", f"-Dmdep.outputFile={libraries}"),
        ],
        HERE,
    )
    (built / "classes" / "logback.xml").write_text(
        '<configuration><root level="OFF"/></configuration>'
    )
    class_path = os.pathsep.join([str(built / "classes"), libraries.read_text().strip()])
    return Compiled(sources, class_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "options", "least"),
    [
        pytest.param("functional", (), 320, id="functional"),
        pytest.param("functional", ("-Duse.nio=true",), 320, id="functional-nio"),
        pytest.param("server", (), 35, id="server"),
    ],
)
def test_the_java_client_s_own_tests(
    compiled: Compiled, tmp_path: Path, group: str, options: tuple[str, ...], least: int
) -> None:
    control = Control(tmp_path)
    try:
        done = subprocess.run(
            [
                *(require("java"), "-cp", compiled.class_path, *options),
                f"-Dtrellis.port={control.broker.amqp.port}",
                f"-Drabbitmqctl.bin={tmp_path / 'rabbitmqctl'}",
                f"-Dmake.bin={tmp_path / 'make'}",
                f"-Drabbitmq.dir={tmp_path}",
                *("-Dtest-broker.A.nodename=a", "-Dtest-broker.A.config_file=none"),
                *("RunSuite", *compiled.classes_of(group)),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    finally:
        control.stop()
    results: dict[str, tuple[str, str]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(rf"(ok|failed|skipped) {PACKAGE}\.(\S+) ?(.*)", line):
            results[match[2]] = match[1], match[3]
    expected = {name for name in EXPECTED if name.startswith(f"{group}.")}
    failed = {name: why for name, (result, why) in results.items() if result == "failed"}
    skipped = {name for name, (result, _) in results.items() if result == "skipped"}
    assert not skipped
    assert {name: failed[name] for name in failed.keys() - expected} == {}
    assert expected - failed.keys() == set(), "these pass now: remove them from EXPECTED"
    assert len(results) >= least
