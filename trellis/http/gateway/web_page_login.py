"""The login of the web page: the body of the login request, and the cookie of the session."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from trellis.http.gateway.link import bad_request
from trellis.http.gateway.paging import encode


class PageLogin(msgspec.Struct):
    """The JSON body of a login to the web page: user and password."""

    user: str
    password: str


def login_of(body: bytes) -> PageLogin:
    """Return the user and the password in the JSON body of a login. Raises HttpRefusal."""
    try:
        return msgspec.json.decode(body, type=PageLogin)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise bad_request(
            "the body must be a JSON object with the texts 'user' and 'password'"
        ) from None


def cookie_name(headers: dict[bytes, bytes]) -> str:
    """Return the name of the cookie that holds the web page's session token.

    Browsers send a cookie to all ports of a host, so the name contains the port: each broker of a
    machine has a cookie of its own.
    """
    port = headers.get(b"host", b"").decode("latin-1").rpartition(":")[2]
    return f"trellis-{port if port.isdecimal() else 'page'}"


def session_of(headers: dict[bytes, bytes]) -> str:
    """Return the session token in the cookie of a request; "" if there is none.

    A browser sends the cookies of all programs on this host, whatever their port, and some of these
    cookies have invalid names or values. So each cookie is read on its own (RFC 6265 section 5.4);
    the module http.cookies drops all cookies if one of them is invalid.
    """
    wanted = cookie_name(headers)
    for cookie in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = cookie.strip().partition("=")
        if name == wanted:
            return value
    return ""


def logged_in(user: dict[str, Any], name: str, token: str, secure: bool) -> Response:
    """Return the answer to a login or a logout, with `user` as JSON in the body.

    The answer sets the cookie `name` to the session's token, or removes the cookie if `token` is
    "". If `secure` is True, browsers send the cookie over HTTPS only.
    """
    response = Response(encode(user), 200, media_type="application/json")
    response.set_cookie(
        name,
        token,
        max_age=None if token else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return response
