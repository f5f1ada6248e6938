"""The OpenAPI description of the API, made from the broker's routes."""

from __future__ import annotations

import re
from typing import Any, Final

from trellis.http import contract

OPENAPI_PATH: Final = "/api/openapi.json"
#: The paths whose answer is a file: its media type, and a description.
FILES: Final = {
    "/api/streams/segment": ("application/vnd.apache.arrow.stream", "The bytes of the segment."),
    "/api/streams/topics": ("application/octet-stream", "The summary of the topics."),
}

_PARAMETER: Final = re.compile(r"{(\w+)}")
#: Query parameters of lists.
_LIST_QUERY: Final[dict[str, dict[str, Any]]] = {
    "page": {"type": "integer", "minimum": 1},
    "page_size": {"type": "integer", "minimum": 1, "maximum": 500},
    "name": {"type": "string"},
    "use_regex": {"type": "boolean"},
    "sort": {"type": "string"},
    "sort_reverse": {"type": "boolean"},
    "columns": {"type": "string"},
}
#: Query parameters of `/api/route`.
_ROUTE_QUERY: Final[dict[str, dict[str, Any]]] = {
    **{
        name: {"type": "string"}
        for name in ("vhost", "exchange", "key", "mqtt", "user", "client_id")
    },
    "header": {"type": "array", "items": {"type": "string"}},
    "limit": {"type": "integer", "minimum": 0},
}
_ERROR: Final = {
    "type": "object",
    "required": ["error", "reason"],
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
}
_OBJECT: Final = {"type": "object"}
#: Status codes of refusals, with their meanings.
_REFUSALS: Final = {
    400: "The request is malformed, or the broker refuses it.",
    401: "The user or the password is missing or wrong.",
    403: "The user lacks a tag or a permission.",
    404: "The path names an object that does not exist.",
    413: "The body is too large.",
    500: "The broker failed; the log has the reason.",
    503: "The broker is busy, or a check failed.",
}
_STREAM_REFUSALS: Final = {
    410: "Retention has removed the segment.",
    416: "The range is not part of the durable segment.",
    501: "The broker holds its streams in memory.",
}


def describe(greeting: contract.Greeting) -> dict[str, Any]:
    """Return the OpenAPI description of the routes in the broker's greeting."""
    paths: dict[str, dict[str, Any]] = {}
    for route in greeting.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trellis HTTP API",
            "version": greeting.version,
            "description": "The API of RabbitMQ's management plugin, as Trellis serves it.",
        },
        "security": [{"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(route: contract.RouteInfo) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", route.path.removeprefix("/api/")).strip("_")
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{name}",
        "summary": route.summary,
        "parameters": [
            {
                "name": parameter,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            for parameter in _PARAMETER.findall(route.path)
        ],
        "responses": _responses(route),
    }
    if route.tags:
        operation["description"] = "Requires one of the user tags " + ", ".join(route.tags) + "."
    if route.method == "GET":
        operation["parameters"] += [
            {"name": parameter, "in": "query", "required": False, "schema": schema}
            for parameter, schema in (
                _ROUTE_QUERY if route.path == "/api/route" else _LIST_QUERY
            ).items()
        ]
    elif route.method in ("PUT", "POST"):
        operation["requestBody"] = {
            "required": False,
            "content": {"application/json": {"schema": _OBJECT}},
        }
    return operation


def _responses(route: contract.RouteInfo) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = dict(_REFUSALS)
    if route.path.startswith("/api/streams"):
        refusals |= _STREAM_REFUSALS
    responses: dict[str, Any] = {
        str(status): {"description": text, "content": error} for status, text in refusals.items()
    }
    if "health" in route.path or "aliveness" in route.path:
        failed = {"application/json": {"schema": _OBJECT}}
        responses["503"] = {"description": _REFUSALS[503], "content": failed}
    if route.path in FILES:
        media_type, description = FILES[route.path]
        responses["200"] = {"description": description, "content": {media_type: {"schema": {}}}}
    elif route.method == "GET" or route.body == contract.DOCUMENT:
        answer: dict[str, Any] = {"application/json": {"schema": {"type": ["object", "array"]}}}
        responses["200"] = {"description": "The answer.", "content": answer}
    else:
        if route.method in ("PUT", "POST"):
            responses["201"] = {"description": "The object was created."}
        responses["204"] = {"description": "The change is durable."}
    if route.path == "/api/trellis/page/session" and route.method == "POST":
        answer = {"application/json": {"schema": _OBJECT}}
        responses["200"] = {"description": "The session of the web page.", "content": answer}
    if route.path == "/api/trellis/delayed" and route.method != "GET":
        answer = {"application/json": {"schema": {"type": "array"}}}
        responses["200"] = {"description": "The message was cancelled.", "content": answer}
    return dict(sorted(responses.items()))
