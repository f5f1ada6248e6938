"""Definitions over HTTP: export and import those of the broker, or of one virtual host."""

from __future__ import annotations

import asyncio

from trellis.http.management.answers import JSON, Call, Row, bad_request, encode
from trellis.http.server import Response
from trellis.server import definitions_files


async def export(call: Call) -> Response:
    """Return all definitions of the broker as a JSON document."""
    return Response(200, await definitions_files.export_in_slices(call.broker), JSON)


async def import_(call: Call) -> Response:
    """Import definitions; return the number of imported ones by kind, and the refused ones.

    RabbitMQ stops at the first refused definition; Trellis imports all others.
    """
    imported = definitions_files.import_(call.broker, call.request.body)
    call.node.review()
    return Response(200, encode({"taken": imported.imported, "refused": imported.refused}), JSON)


async def export_vhost(call: Call) -> Response:
    """Return the definitions of one virtual host."""
    vhost = call.vhost(call.path_parameters[0])
    return Response(200, await definitions_files.export_in_slices(call.broker, vhost.name), JSON)


async def import_vhost(call: Call) -> Response:
    """Import definitions into the virtual host that the path names."""
    vhost, document = call.vhost(call.path_parameters[0]), call.body()
    whole: Row = {}
    for section in definitions_files.VHOST_SECTIONS:
        rows = document.get(section, [])
        if not isinstance(rows, list):
            raise bad_request(f"'{section}' is not a list")
        whole[section] = [
            {**row, "vhost": vhost.name} if isinstance(row, dict) else row for row in rows
        ]
    imported = await asyncio.get_running_loop().run_in_executor(None, encode, whole)
    taken = definitions_files.import_(call.broker, imported)
    return Response(200, encode({"taken": taken.imported, "refused": taken.refused}), JSON)
