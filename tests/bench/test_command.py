"""The command `trellis bench load`: its output, its JSON and its exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.faulty import FaultyBroker
from tests.bench.runs import held, targets
from tests.broker import BrokerProcess
from trellis.bench.workloads import WORKLOADS
from trellis.cli import main
from trellis.progress import ProgressLine

NUMBER = (int, float)
LATENCY = {
    "count": int,
    "mean": NUMBER,
    "p50": NUMBER,
    "p99": NUMBER,
    "p999": NUMBER,
    "max": NUMBER,
}
ROUND = {
    "messages": int,
    "deliveries": int,
    "seconds": NUMBER,
    "octets_out": int,
    "octets_in": int,
    "sends": int,
    "receives": int,
    "generator_cpu": NUMBER,
    "broker": dict,
    "latency": dict,
}
BROKER = {
    "cpu": NUMBER,
    "system_share": NUMBER,
    "rss_before": int,
    "rss_after": int,
    "rss_peak": int,
}
MEDIAN = {
    "rate": NUMBER,
    "delivery_rate": NUMBER,
    "octet_rate": NUMBER,
    "generator_us": NUMBER,
    "broker_us": NUMBER,
    "broker_spread": NUMBER,
    "rss_before": int,
    "rss_after": int,
    "rss_peak": int,
    "latency": dict,
}
WORKLOAD = {
    "name": str,
    "text": str,
    "publish": str,
    "consume": str,
    "publishers": int,
    "subscribers": int,
    "size": int,
    "batch": int,
    "window": int,
    "bindings": int,
    "rate": NUMBER,
    "bind_seconds": type(None),
    "rounds": list,
    "median": dict,
    "error": type(None),
}
ENVIRONMENT = {
    "time": str,
    "command": str,
    "trellis": str,
    "python": str,
    "generator_compiled": bool,
    "cpu": str,
    "cpus": int,
    "kernel": str,
    "machine": str,
    "load": NUMBER,
    "targets": dict,
    "servers": dict,
}


def command(broker: BrokerProcess, *words: str) -> list[str]:
    where = targets(broker)
    return [
        "bench",
        "load",
        "--amqp",
        f"amqp://guest:guest@127.0.0.1:{where['amqp'].port}/",
        "--mqtt",
        str(where["mqtt"]),
        *words,
    ]


def assert_shape(document: dict[str, object], shape: dict[str, Any]) -> None:
    assert list(document) == list(shape)
    assert not [name for name, value in document.items() if not isinstance(value, shape[name])]


def test_json_keeps_its_fields(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.json"
    assert (
        main(
            command(
                broker,
                "mqtt-pingpong",
                "--messages",
                "50",
                "--rounds",
                "2",
                "--pid",
                str(broker.process.pid),
                "--json",
                str(file),
            )
        )
        == 0
    )
    report = json.loads(file.read_text())
    assert set(report) == {"format", "environment", "workloads"} and report["format"] == 1
    assert_shape(report["environment"], ENVIRONMENT)
    workload = report["workloads"][0]
    assert_shape(workload, WORKLOAD)
    assert len(workload["rounds"]) == 2
    for one in workload["rounds"]:
        assert_shape(one, ROUND)
        assert_shape(one["broker"], BROKER)
        assert_shape(one["latency"], LATENCY)
    assert_shape(workload["median"], MEDIAN)
    environment, heading, row = capsys.readouterr().out.splitlines()
    assert "(Trellis" not in environment and "generator" in environment and "load" in environment
    assert (
        heading.split()[:3] == ["workload", "msg/s", "deliv/s"]
        and row.split()[0] == "mqtt-pingpong"
    )


def test_json_on_standard_output_has_no_table_and_no_password(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(
        broker, "amqp-auto", "mqtt-qos0", "--messages", "10", "--rounds", "1", "--json", "-"
    )
    monkeypatch.setattr(sys, "argv", ["trellis", *words])
    assert main() == 0
    report = json.loads(capsys.readouterr().out)
    assert "amqp://guest:***@127.0.0.1" in report["environment"]["command"]
    assert report["environment"]["servers"]["amqp"].startswith("Trellis")
    assert [workload["name"] for workload in report["workloads"]] == ["amqp-auto", "mqtt-qos0"]
    assert report["workloads"][0]["rounds"][0]["broker"] is None


def test_wrong_answers_end_with_1_and_other_workloads_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FaultyBroker("stutter") as broker:
        code = main(
            [
                "bench",
                "load",
                "--mqtt",
                str(broker.target),
                "--messages",
                "60",
                "--rounds",
                "1",
                "mqtt-pingpong",
                "mqtt-qos0",
            ]
        )
    printed = capsys.readouterr()
    assert code == 1
    assert printed.err == (
        "trellis: mqtt-pingpong: wrong answer at subscriber 0: a message came again or late: "
        "expected message 20 of publisher 0, got message 19\n"
    )
    assert "mqtt-qos0" in printed.out and "mqtt-pingpong" not in printed.out


def test_missing_broker_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "--mqtt", "mqtt://127.0.0.1:1", "--rounds", "1"]) == 1
    printed = capsys.readouterr()
    assert (
        printed.err.startswith("trellis: cannot connect to mqtt://127.0.0.1:1 (")
        and printed.err.count("\n") == 1
    )
    assert printed.out == ""


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(WORKLOADS)
    assert all(line.split(None, 1)[1] for line in lines)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["mqtt-qos3"], "unknown workload mqtt-qos3; the nearest is mqtt-qos"),
        (
            ["amqp-auto", "--mqtt", "mqtt://127.0.0.1"],
            "workload amqp-auto needs an AMQP broker as well; give --amqp",
        ),
        (
            ["--mqtt", "http://host"],
            '--mqtt: must be a URL such as mqtt://USER:PASSWORD@HOST:PORT, got "http://host"',
        ),
        (["--size", "7"], "argument --size: must be a whole number of at least 8"),
        (["--rate", "nan"], "argument --rate: must be a number of at least 0.001"),
        (["--rounds", "0"], "argument --rounds: must be a whole number of at least 1"),
        (["--messages", "1", "--seconds", "1"], "not allowed with argument"),
        (["--pid", "1,x"], "argument --pid: must be process IDs separated by commas"),
        (
            ["--json", "/no/such/folder/file"],
            "cannot write /no/such/folder/file: No such file or directory",
        ),
        (["--sise", "7"], "unknown argument --sise; the nearest flag is --size"),
    ],
)
def test_wrong_arguments_end_with_2(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", *words]) == 2
    printed = capsys.readouterr().err
    assert problem in printed and printed.count("\n") == 1


def test_bench_without_a_tool_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "load" in capsys.readouterr().out


def test_ctrl_c_leaves_nothing_behind(broker: BrokerProcess) -> None:
    # A process in the background of a shell ignores Ctrl-C, and so do its children.
    process = subprocess.Popen(
        [sys.executable, "-m", "trellis", *command(broker, "amqp-fan10", "--seconds", "600")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while len(held(broker, "queues")) < 10:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out, errors) == (130, "", "")
    assert not held(broker, "queues") and not held(broker, "exchanges")


def test_progress_is_shown_on_a_terminal_only() -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as terminal:
        progress = ProgressLine(terminal)
        progress.begin("mqtt-qos0 1/3", messages=100)
        progress.say("connecting")
        progress.tick(50)
        progress.end()
    shown = ""
    # Stop reading at this text: a read from a terminal without further output would block.
    while not shown.endswith("\r\x1b[K"):
        shown += os.read(leader, 10_000).decode()
    os.close(leader)
    assert "mqtt-qos0 1/3  connecting" in shown
    assert "[############............] 50 messages" in shown
    silent = io.StringIO()
    progress = ProgressLine(silent)
    progress.say("connecting")
    progress.tick(50)
    progress.end()
    assert silent.getvalue() == ""
