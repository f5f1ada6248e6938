"""Definitions as documents: of all, or of one virtual host."""

from __future__ import annotations

import asyncio

from broker import definitions
from trellis import defining
from trellis.http import Response
from trellis.management.answers import JSON, Call, Row, encode, wrong
from trellis.passwords import show_hash

#: Sections of a virtual host's own document, whose rows do not name it.
OWN = ("exchanges", "queues", "bindings", "policies")


async def give_out(call: Call) -> Response:
    return Response(200, defining.give_out(call.broker), JSON)


async def take_in(call: Call) -> Response:
    """200, with what was taken in and what was not. (RabbitMQ stops at what it does not take; here the rest is taken.)"""
    imported = defining.take_in(call.broker, call.request.body)
    call.node.review()
    return Response(200, encode({"taken": imported.taken, "refused": imported.refused}), JSON)


async def give_out_vhost(call: Call) -> Row:
    vhost = call.vhost(call.parts[0])
    document = definitions.dump(call.broker, show_hash)
    found: Row = {"rabbit_version": document.get("rabbit_version", ""), "vhost": vhost.name}
    for section in OWN:
        rows = document[section]
        assert isinstance(rows, list)
        found[section] = [{key: value for key, value in row.items() if key != "vhost"} for row in rows if row["vhost"] == vhost.name]
    return found


async def take_in_vhost(call: Call) -> Response:
    vhost, document = call.vhost(call.parts[0]), call.body()
    whole: Row = {}
    for section in OWN:
        rows = document.get(section, [])
        if not isinstance(rows, list):
            raise wrong(f"'{section}' is no list")
        whole[section] = [{**row, "vhost": vhost.name} if isinstance(row, dict) else row for row in rows]
    imported = await asyncio.get_running_loop().run_in_executor(None, encode, whole)
    taken = defining.take_in(call.broker, imported)
    return Response(200, encode({"taken": taken.taken, "refused": taken.refused}), JSON)
