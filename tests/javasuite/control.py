"""Stands in for rabbitmqctl and RabbitMQ's Makefile, which the tests of RabbitMQ's Java client
call.

The suite runs `rabbitmqctl COMMAND` and `make TARGET`. Here both names are small scripts, which
pass their arguments to a `Control` in the test's process. A command becomes requests to the HTTP
API; the targets stop and start the broker. Alarms are real: a memory alarm begins because the
broker holds more messages than its limit allows. The broker cannot begin a disk alarm on request,
so the control keeps the memory alarm on while the suite wants at least one of the two.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pika
from pika.exceptions import AMQPError

from tests.broker import BrokerProcess
from trellis import process

#: Bytes that the broker may use before the memory alarm begins; without messages it needs less.
MEMORY_LIMIT: Final = 260 << 20
#: Bytes of each message that fills the broker's memory, at first and when little memory is left. If
#: the alarm interrupted a large message in its middle, the broker would not read the rest.
_LARGE, _SMALL = 4 << 20, 32 << 10
#: Small messages are published when less than this many bytes of memory are left.
_LEFT: Final = 20 << 20
#: Name and password of the user as which the Control logs in.
_OPERATOR: Final = "operator"

#: The queue that holds the messages which fill the memory.
_FILLED: Final = "fills-the-memory"

#: The program of both scripts: it sends its arguments, prints the answer, exits with its code.
_SCRIPT: Final = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect({path!r})
    with link.makefile("rw") as lines:
        print(json.dumps([{program!r}, *sys.argv[1:]]), file=lines, flush=True)
        code, output, error = json.loads(lines.readline())
sys.stdout.write(output)
sys.stderr.write(error)
sys.exit(code)
"""


class Refused(Exception):
    """Raised if a control command fails."""


class Control:
    """A broker with a data directory and ports of its own, and the scripts that control it."""

    def __init__(self, directory: Path) -> None:
        """Start the broker and the thread that serves the scripts, which are in `directory`."""
        self._flags = [
            *("--data-dir", str(directory / "data")),
            *("--auth-guest", "false", "--user", _OPERATOR, "--password", _OPERATOR),
            *("--limits-memory", str(MEMORY_LIMIT / process.memory_bytes())),
        ]
        self.broker = BrokerProcess(*self._flags)
        # A restarted broker must have the same ports, because the suite's connections recover.
        for name in ("amqp", "http"):
            self._flags += [f"--{name}-port", str(self.broker.addresses[name].port)]
        # A user of the settings could not get other tags or topic permissions while the suite runs.
        self.request("PUT", "users/guest", {"password": "guest", "tags": "administrator"})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request("PUT", "permissions/%2F/guest", everything)
        self._alarms: set[str] = set()
        #: The connection that fills the memory, while an alarm is on.
        self._filler: pika.BlockingConnection | None = None
        self._lock = threading.Lock()
        path = str(directory / "control")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(16)
        for program in ("rabbitmqctl", "make"):
            script = directory / program
            script.write_text(
                _SCRIPT.format(python=sys.executable, path=path, program=program),
            )
            script.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and the broker, and check that the broker wrote no error."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.broker.stop()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:  # `stop` has shut the listener down.
                return
            with link, link.makefile("rw") as lines:
                arguments = json.loads(lines.readline())
                with self._lock:
                    answer = self._answer(arguments)
                print(json.dumps(answer), file=lines, flush=True)

    def _answer(self, arguments: list[str]) -> tuple[int, str, str]:
        """Run a command. Return its exit code, its output on stdout, and its output on stderr."""
        program, *words = arguments
        try:
            if program == "make":
                self._make(words)
                return 0, "", ""
            return 0, self._rabbitmqctl(words), ""
        except Refused as error:
            return 64, "", f"{error}\n"
        # An error must be answered, because the suite waits for the answer and reports it.
        except (
            AssertionError,
            AMQPError,
            OSError,
            LookupError,
        ) as error:
            return 70, "", f"{error!r}\n"

    def _make(self, words: list[str]) -> None:
        values = dict(word.split("=", 1) for word in words if "=" in word)
        for target in (
            word for word in words if re.fullmatch(r"(start|stop|set|clear)-[a-z-]+", word)
        ):
            match target:
                case "stop-rabbit-on-node":
                    self.broker.stop()
                case "start-rabbit-on-node":
                    self.broker = BrokerProcess(*self._flags)
                case "set-resource-alarm":
                    self._set_alarm(values["SOURCE"], True)
                case "clear-resource-alarm":
                    self._set_alarm(values["SOURCE"], False)
                case _:
                    raise Refused(f"there is no target {target}")

    def _rabbitmqctl(self, words: list[str]) -> str:
        """Carry out a command of rabbitmqctl, and return its output."""
        options, words = _divided(words)
        if not words:
            raise Refused("Commands: " + " ".join(sorted(_COMMANDS)))
        command, *rest = words
        if command == "set_vm_memory_high_watermark":
            self._set_alarm("memory", float(rest[0]) < 0.01)
            return ""
        if command not in _COMMANDS:
            raise Refused(f"there is no command {command}")
        return _COMMANDS[command](self, quote(options.get("-p", "/"), ""), options, rest)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the HTTP API; return the answer's JSON, or None if it has no body.

        Raises Refused if the status is 300 or above.
        """
        connection = http.client.HTTPConnection(*self.broker.addresses["http"], timeout=30)
        try:
            login = base64.b64encode(f"{_OPERATOR}:{_OPERATOR}".encode()).decode()
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Basic {login}"}
            connection.request(method, f"/api/{path}", content, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text) if text else None

    def _set_alarm(self, source: str, on: bool) -> None:
        """Turn the alarm `source` (memory or disk) on or off, as the suite wants it.

        The broker's memory alarm stands for both: it is on while the suite wants at least one of
        them. Wait until the broker has turned its alarm on or off.
        """
        (self._alarms.add if on else self._alarms.discard)(source)
        wanted = bool(self._alarms)
        if wanted and self._filler is None:
            self._fill()
        elif not wanted and self._filler is not None:
            self.request("DELETE", f"queues/%2F/{_FILLED}")
            while self._alarm():
                pass
            self._filler.close()
            self._filler = None

    def _alarm(self) -> bool:
        return bool(self._node()["mem_alarm"])

    def _node(self) -> Any:
        return self.request("GET", "nodes")[0]

    def _fill(self) -> None:
        """Publish messages until the memory alarm begins."""
        url = self.broker.amqp_url_of(_OPERATOR, _OPERATOR)
        self._filler = pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=0"))
        channel = self._filler.channel()
        channel.confirm_delivery()
        channel.queue_declare(_FILLED)
        while not (node := self._node())["mem_alarm"]:
            near = node["mem_used"] + _LEFT > node["mem_limit"]
            channel.basic_publish("", _FILLED, bytes(_SMALL if near else _LARGE))


def _divided(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a command and its other arguments."""
    options: dict[str, str] = {}
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "-q":
            continue
        if word in ("-n", "-p", "--priority"):
            options[word] = next(remaining)
        else:
            rest.append(word)
    return options, rest


def _add_user(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    name, password = rest
    control.request("PUT", f"users/{quote(name, '')}", {"password": password, "tags": ""})
    return ""


def _set_user_tags(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    name, *tags = rest
    path = f"users/{quote(name, '')}"
    known = control.request("GET", path)
    kept = {key: known[key] for key in ("password_hash", "hashing_algorithm")}
    control.request("PUT", path, {**kept, "tags": ",".join(tags)})
    return ""


def _delete_user(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    control.request("DELETE", f"users/{quote(rest[0], '')}")
    return ""


def _add_vhost(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    control.request("PUT", f"vhosts/{quote(rest[0], '')}", {})
    return ""


def _delete_vhost(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    control.request("DELETE", f"vhosts/{quote(rest[0], '')}")
    return ""


def _set_permissions(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    user, configure, write, read = rest
    body = {"configure": configure, "write": write, "read": read}
    control.request("PUT", f"permissions/{vhost}/{quote(user, '')}", body)
    return ""


def _clear_permissions(
    control: Control, vhost: str, options: dict[str, str], rest: list[str]
) -> str:
    control.request("DELETE", f"permissions/{vhost}/{quote(rest[0], '')}")
    return ""


def _set_topic_permissions(
    control: Control, vhost: str, options: dict[str, str], rest: list[str]
) -> str:
    user, exchange, write, read = rest
    body = {"exchange": exchange, "write": write, "read": read}
    control.request("PUT", f"topic-permissions/{vhost}/{quote(user, '')}", body)
    return ""


def _clear_topic_permissions(
    control: Control, vhost: str, options: dict[str, str], rest: list[str]
) -> str:
    control.request("DELETE", f"topic-permissions/{vhost}/{quote(rest[0], '')}")
    return ""


def _set_policy(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    name, pattern, definition = rest
    body = {
        "pattern": pattern,
        "definition": json.loads(definition),
        "priority": int(options.get("--priority", 0)),
        "apply-to": "all",
    }
    control.request("PUT", f"policies/{vhost}/{quote(name, '')}", body)
    return ""


def _clear_policy(control: Control, vhost: str, options: dict[str, str], rest: list[str]) -> str:
    control.request("DELETE", f"policies/{vhost}/{quote(rest[0], '')}")
    return ""


def _list_connections(
    control: Control, vhost: str, options: dict[str, str], rest: list[str]
) -> str:
    if rest != ["pid", "peer_port"]:
        raise Refused(f"list_connections knows pid and peer_port, not {shlex.join(rest)}")
    rows = control.request("GET", "connections")
    return "".join(f"{row['name']}\t{row['peer_port']}\n" for row in rows)


def _close_connection(
    control: Control, vhost: str, options: dict[str, str], rest: list[str]
) -> str:
    control.request("DELETE", f"connections/{quote(rest[0], '')}")
    return ""


#: The commands of rabbitmqctl that the suite uses and that Trellis has.
_COMMANDS: Final[dict[str, Callable[[Control, str, dict[str, str], list[str]], str]]] = {
    "add_user": _add_user,
    "set_user_tags": _set_user_tags,
    "delete_user": _delete_user,
    "add_vhost": _add_vhost,
    "delete_vhost": _delete_vhost,
    "set_permissions": _set_permissions,
    "clear_permissions": _clear_permissions,
    "set_topic_permissions": _set_topic_permissions,
    "clear_topic_permissions": _clear_topic_permissions,
    "set_policy": _set_policy,
    "clear_policy": _clear_policy,
    "list_connections": _list_connections,
    "close_connection": _close_connection,
}
