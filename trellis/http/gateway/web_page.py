"""The web page at `/`: its files, its login, and its stream of events.

    GET  /              the page, with a strict Content-Security-Policy
    GET  /page/NAME     its scripts and its style sheet
    POST /page/login    {"user": ..., "password": ...}; the answer sets the cookie of the session
    POST /page/logout   ends the session
    GET  /page/events   server-sent events: the state of the broker, once a second

The gateway keeps no password: the broker checks it once, and gives the session a random token. The
broker is asked for its state once a second, however many pages are open.
"""

from __future__ import annotations

import gzip
import mimetypes
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.responses import Response

from trellis.http import contract
from trellis.http.gateway.event_feed import Caller, EventFeed
from trellis.http.gateway.incoming import Incoming
from trellis.http.gateway.link import BrokerLink, HttpRefusal, method_not_allowed
from trellis.http.gateway.web_page_login import (
    PageLogin,
    cookie_name,
    logged_in,
    login_of,
    session_of,
)
from trellis.http.origins import is_direct
from trellis.http.routes import HttpRouter, Unrouted

FILES: Final = Path(__file__).with_name("page_files")
#: Largest body of a login, in bytes.
LOGIN_MAX: Final = 4 << 10
#: The policy permits scripts, styles and connections of this origin only, and no frame around the
#: page. The icon is part of the page.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}

#: Paths of the API for sessions of the page, and for the state of the broker.
SESSION_PATH: Final = "/api/trellis/page/session"
STATE_PATH: Final = "/api/trellis/now"


def is_page(path: str) -> bool:
    """True if a URL path belongs to the web page, not to the API."""
    return path == "/" or path.startswith("/page/")


class PageFile:
    """A file of the web page, plain and compressed with gzip."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.compressed = gzip.compress(self.data, 9)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.kind = f"{'text/javascript' if path.suffix == '.js' else kind}; charset=utf-8"

    def response(self, takes_gzip: bool) -> Response:
        """Return the file as a response, compressed if the client takes gzip."""
        headers = dict(_HEADERS)
        if takes_gzip:
            headers["Content-Encoding"] = "gzip"
        data = self.compressed if takes_gzip else self.data
        return Response(data, 200, headers, self.kind)


class PageFiles:
    """The files of the web page by path, which are read when the page is first requested."""

    def __init__(self) -> None:
        self._files: dict[str, PageFile] | None = None

    def find(self, path: str) -> PageFile | None:
        """Return the file of a path; None if the page has no such file."""
        if self._files is None:
            self._files = {f"/page/{path.name}": PageFile(path) for path in FILES.iterdir()}
            self._files["/"] = self._files.pop("/page/index.html")
        return self._files.get(path)


class WebPage:
    """Answers the requests of the page's files, of its login, and of its events."""

    def __init__(
        self,
        link: BrokerLink,
        router: HttpRouter[int],
        hosts: frozenset[str],
        seconds: float,
    ) -> None:
        """Create the page.

        `hosts` are the host names of this machine; `seconds` limits each step of a request.
        """
        self._link = link
        self._router = router
        self._hosts = hosts
        self._seconds = seconds
        self._files = PageFiles()
        self._feed = EventFeed(lambda caller: self._ask("GET", STATE_PATH, caller))

    async def answer(self, incoming: Incoming, method: str) -> Response:
        """Return the response to a request of the page. Raises HttpRefusal, TimeoutError."""
        request = method, incoming.path
        if request == ("GET", "/page/events"):
            return await self._feed.open(self._caller(incoming))
        if request == ("POST", "/page/login"):
            incoming.check_origin()
            login = login_of(await incoming.body.read(LOGIN_MAX, self._seconds))
            user = await self._ask("POST", SESSION_PATH, self._caller(incoming), login)
            return self._with_cookie(incoming, user, user.pop("token"))
        if request == ("POST", "/page/logout"):
            incoming.check_origin()
            await self._ask("DELETE", SESSION_PATH, self._caller(incoming))
            return self._with_cookie(incoming, {}, "")
        file = self._files.find(incoming.path)
        if file is None:
            raise HttpRefusal(
                404, "Object Not Found", f"the web page has no file '{incoming.path}'"
            )
        if method != "GET":
            raise method_not_allowed(method, incoming.path, "GET, HEAD")
        return file.response(incoming.takes_gzip)

    def _caller(self, incoming: Incoming) -> Caller:
        direct = is_direct(incoming.headers, self._hosts)
        return Caller(session_of(incoming.headers), *incoming.client, direct)

    @staticmethod
    def _with_cookie(incoming: Incoming, user: dict[str, Any], token: str) -> Response:
        return logged_in(user, cookie_name(incoming.headers), token, incoming.secure)

    async def _ask(
        self, method: str, path: str, caller: Caller, login: PageLogin | None = None
    ) -> Any:
        """Make an API call without a body, and return the decoded answer; None for an empty answer.

        The call is made with the user and password of `login`, or with the session of the caller.
        Raises HttpRefusal, TimeoutError.
        """
        route = self._router.find(method, path)
        assert not isinstance(route, Unrouted)
        user, password = (None, b"") if login is None else (login.user, login.password.encode())
        # A caller without a session gets the same refusal as a caller whose session has ended.
        session = "" if login is not None else caller.session or "none"
        await self._link.writable(self._seconds)
        exchange = self._link.begin(
            lambda number: contract.ApiCall(
                number,
                route[0],
                path,
                [],
                {},
                user,
                password,
                b"",
                caller.address,
                caller.port,
                caller.direct,
                False,
                session,
            )
        )
        try:
            while True:
                message = await exchange.next(self._seconds)
                if isinstance(message, contract.Answer):
                    empty = message.shape == contract.EMPTY
                    return None if empty else msgspec.msgpack.decode(message.value)
        except HttpRefusal as refusal:
            refusal.challenge = False  # A challenge would open a login window of the browser.
            raise
        finally:
            exchange.close()
