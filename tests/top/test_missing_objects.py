"""The errors of commands about an object that does not exist: nearest name, and next command."""

from __future__ import annotations

import shlex
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from trellis.cli import main, parser
from trellis.cli.missing_objects import NAMES_MAX, advice_about

#: Commands with a misspelt name, the nearest name, and the command that lists the names.
MISSPELT: Final = [
    ("queues delete ordrs", "orders", "list queues"),
    ("peek ordrs", "orders", "list queues"),
    ("purge ordrs", "orders", "list queues"),
    ("pause ordrs", "orders", "list queues"),
    ("why queue ordrs", "orders", "list queues"),
    ("move ordrs --to orders", "orders", "list queues"),
    ("queues delete pump --vhost plant", "pumps", "list queues --vhost plant"),
    ("queues delete orders --vhost plant", "", "list queues --vhost plant"),
    ("queues delete orders --vhost plnt", "plant", "vhosts list"),
    ("vhosts delete plnt", "plant", "vhosts list"),
    ("exchanges delete sensor", "sensors", "list exchanges"),
    ("publish sensor a", "sensors", "list exchanges"),
    ("bindings declare sensors ordrs a", "orders", "list queues"),
    ("bindings declare sensor orders a", "sensors", "list exchanges"),
    ("policies clear limit", "limits", "policies list"),
    ("users delete anne", "ann", "users list"),
    ("users tags anne", "ann", "users list"),
    ("permissions set anne a b c", "ann", "users list"),
    ("permissions clear ann", "", "permissions list ann"),
    ("permissions list anne", "ann", "users list"),
    ("why topic a --publisher anne", "ann", "users list"),
    ("roles delete device", "devices", "roles list"),
    ("roles assign device ann", "devices", "roles list"),
    ("why client device-8", "device-7", "list connections"),
    # The client device-7 has a session, but no connection that can be closed.
    ("close device-8", "", "list connections"),
    ("close meter-8", "meter-7", "list connections"),
    ("close '127.0.0.1:1 -> mqtt'", "CONNECTION", "list connections"),
    ("sessions delete device-8", "device-7", "list sessions"),
    ("stream head histry", "history", "stream list"),
    ("stream export histry FILE", "history", "stream list"),
]
#: The beginnings of the commands that set a property of a user, who may have to be added.
SETTING: Final = ("users tags", "permissions set")


@pytest.fixture
async def commands(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Commands]:
    """Start a broker with an object of each kind, and return the commands against it."""
    broker = await start(**users())
    stream = {"arguments": {"x-queue-type": "stream"}}
    policy = {"pattern": "^o", "definition": {"max-length": 9}}
    role = {"vhosts": {"/": {"configure": "", "write": "", "read": ""}}}
    for path, body in (
        ("vhosts/plant", {}),
        ("permissions/plant/admin", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("queues/%2F/orders", {}),
        ("queues/plant/pumps", {}),
        ("queues/%2F/history", stream),
        ("exchanges/%2F/sensors", {"type": "topic"}),
        ("policies/%2F/limits", policy),
        ("roles/devices", role),
        ("users/ann", {"password_hash": "", "tags": ""}),
    ):
        assert (await api(broker, "PUT", path, body))[0] == 201, path
    await (await broker.mqtt("device-7", user="known/known", clean=False)).leave()
    meter = await broker.mqtt("meter-7", user="known/known")
    yield Commands(broker, capsys, monkeypatch)
    await meter.leave()


async def test_the_error_names_the_nearest_object_and_the_command_that_lists_all(
    commands: Commands, tmp_path: Path
) -> None:
    [row] = await commands.json("list", "connections", "--columns", "peer")
    for command, nearest, lists in MISSPELT:
        nearest = nearest.replace("CONNECTION", f"{row['peer']} -> mqtt")
        words = shlex.split(command.replace("FILE", str(tmp_path / "rows.parquet")))
        error = await commands.fails(*words)
        name = f"; the nearest is '{nearest}'" if nearest else ""
        if command.startswith(SETTING):
            lists += ", or to add this user: trellis users add anne"
        assert error.endswith(f"{name}; next: trellis {lists}\n"), (command, error)
        assert ("; the nearest is " in error) == bool(nearest), (command, error)
        assert error.count("\n") == 1, (command, error)
        words = shlex.split(lists.partition(",")[0])
        assert parser(words[0]).parse(words).command == words[0]
    # A user that may not enter a virtual host gets no names of its queues.
    code, _, error = await commands.run("queues", "delete", "pump", "--vhost=plant", user="known")
    assert code == 1 and "access to vhost 'plant' refused" in error and "pumps" not in error


async def test_the_error_of_a_command_that_sets_a_property_of_a_user_says_how_to_add_the_user(
    commands: Commands,
) -> None:
    add = "there is no user 'o bea'; next: trellis users list, or to add this user: "
    for line in (
        "users tags 'o bea' management",
        "permissions set 'o bea' '' '' ''",
        "permissions topic 'o bea' 'allow all #'",
        "roles assign devices 'o bea'",
    ):
        error = await commands.fails(*shlex.split(line))
        assert error == f"trellis: {add}trellis users add 'o bea'\n", line
    # These commands do not set a property of the user, so the error does not propose to add the
    # user.
    for line in (
        "users delete 'o bea'",
        "permissions clear 'o bea'",
        "why topic a --publisher 'o bea'",
    ):
        error = await commands.fails(*shlex.split(line))
        assert error == "trellis: there is no user 'o bea'; next: trellis users list\n", line
    # The operator follows the error.
    commands.stdin = b"secret\n"
    assert (await commands.out("users", "add", "o bea")).startswith("user o bea is added")
    await commands.out("permissions", "set", "o bea", "", "", "")


async def test_the_name_of_a_session_leads_to_the_inbox_of_the_session(
    commands: Commands,
) -> None:
    for command in ("peek device-7", "why queue device-7", "purge device-7"):
        error = await commands.fails(*command.split())
        inbox = error.partition("has the inbox '")[2].partition("'")[0]
        assert error == (
            "trellis: no queue 'device-7' in vhost '/', but session 'device-7' in vhost '/' has "
            f"the inbox '{inbox}' (column `inbox` of `trellis list sessions`): give the name of "
            "the inbox; next: trellis list sessions\n"
        )
        rows = await commands.json("list", "sessions", "--json")
        assert inbox in [row["inbox"] for row in rows]
    assert await commands.out("peek", inbox) == (f"no message waits in queue '{inbox}'\n")


@pytest.mark.parametrize(
    "error", ["no answer from http://127.0.0.1", "no flag '--x'", "", "no queue of this name"]
)
def test_an_error_about_something_else_is_left_as_it_is(error: str) -> None:
    assert advice_about(error, lambda path, query: [{"name": "x"}]) == ""


@pytest.mark.parametrize("answer", [b'"x"', b"3", b"null", b"[1]", b'{"items": 3}', b"{}", b"{"])
def test_an_answer_that_is_no_list_leaves_the_nearest_name_out(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path.endswith("/ordrs"):
                self.answer(404, b"{\"reason\": \"no queue 'ordrs' in vhost '/'\"}")
            else:
                self.answer(200, answer)

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            code = main(["pause", "ordrs", "--url", f"http://127.0.0.1:{server.server_port}"])
        finally:
            server.shutdown()
    assert (code, capsys.readouterr().err) == (
        1,
        "trellis: no queue 'ordrs' in vhost '/'; next: trellis list queues\n",
    )


def test_the_names_that_are_compared_are_bounded() -> None:
    rows: list[dict[str, object]] = [{"name": f"q{number}"} for number in range(NAMES_MAX)]
    rows.append({"name": "orders"})
    requests = []

    def list_rows(path: tuple[str, ...], query: object) -> list[dict[str, object]]:
        requests.append((path, query))
        return rows

    assert advice_about("no queue 'ordrs' in vhost 'a b'", list_rows) == (
        "; next: trellis list queues --vhost 'a b'"
    )
    expected = {"page": 1, "page_size": NAMES_MAX, "columns": "name"}
    assert requests == [(("queues", "a b"), expected)]
