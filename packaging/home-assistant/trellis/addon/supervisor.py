"""Announces the broker to the Supervisor, for Home Assistant and for other apps.

POST /discovery         Home Assistant offers to configure its integration MQTT
POST /services/mqtt     other apps, such as Zigbee2MQTT, can get the address and a login
DELETE /services/mqtt   another app may provide the service
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

#: Port of the listener for MQTT in the network of the apps.
PORT: Final = 1883
#: Seconds that a request may take.
TIMEOUT: Final = 10.0
#: Seconds between two attempts: the first and the longest pause. Each pause doubles the one before.
PAUSE, LONGEST_PAUSE = 1.0, 60.0


class SupervisorRefusal(Exception):
    """Raised if the Supervisor refuses a request, and would refuse another attempt, too."""


class Supervisor:
    """The Supervisor's API, with the token of this app."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._ended = threading.Event()

    def announce(self, passwords: Mapping[str, str]) -> None:
        """Announce the broker for Home Assistant and for other apps, and print the results.

        Repeat a request that fails until it succeeds, is refused, or `end` is called.
        """
        broker = {"host": socket.gethostname(), "port": PORT, "ssl": False}
        home = {**broker, **_login("homeassistant", passwords), "protocol": "5"}
        # The Supervisor's schema of the service refuses the protocol "5", so the service has no
        # protocol: the other apps choose a version of MQTT.
        service = {**broker, **_login("addons", passwords)}
        discovery = {"service": "mqtt", "config": home}
        self._insist("Home Assistant", "/discovery", discovery)
        self._insist("other apps", "/services/mqtt", service)

    def withdraw(self) -> None:
        """Tell the Supervisor that this app no longer provides the service; print a failure."""
        try:
            self._request("DELETE", "/services/mqtt")
        except (OSError, SupervisorRefusal) as error:
            print(f"trellis app: cannot withdraw the MQTT service: {error}", flush=True)

    def end(self) -> None:
        """End the attempts of `announce`, which runs in another thread."""
        self._ended.set()

    def _insist(self, whom: str, path: str, body: Mapping[str, Any]) -> None:
        pause = PAUSE
        while not self._ended.is_set():
            try:
                self._request("POST", path, body)
            except SupervisorRefusal as error:
                print(f"trellis app: {whom} cannot find the broker: {error}", flush=True)
                return
            except OSError as error:
                print(
                    f"trellis app: a request to the Supervisor failed ({error}); next attempt in "
                    f"{pause:g} s",
                    flush=True,
                )
                self._ended.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                print(f"trellis app: {whom} can find the broker", flush=True)
                return

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request to the Supervisor.

        Raises SupervisorRefusal for a status below 500, and OSError for all other failures.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                response.read()
        except urllib.error.HTTPError as error:
            reason = f"{method} {path}: status {error.code}, {_message(error.read())}"
            if error.code < 500:
                raise SupervisorRefusal(reason) from None
            raise OSError(reason) from None
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: the answer is not valid HTTP: {error!r}") from None


def _login(user: str, passwords: Mapping[str, str]) -> dict[str, str]:
    return {"username": user, "password": passwords[user]}


def _message(body: bytes) -> str:
    """Return the message in an error answer of the Supervisor, or the beginning of the answer."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
