"""A running broker, asked over its HTTP listener: its definitions."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark_trellis.errors import PipelineError

#: Seconds to wait for an answer.
PATIENCE: Final = 30


@dataclass(frozen=True)
class Broker:
    """Where it is, and who asks."""

    url: str
    user: str
    password: str

    @classmethod
    def of(cls, place: str) -> Broker:
        """http://USER:PASSWORD@HOST:15672; guest where nobody is named. Raises PipelineError."""
        try:
            parts = urlsplit(place)
            port = parts.port or 15672
        except ValueError as error:
            raise PipelineError(f"{place} is no URL: {error}") from None
        if not parts.hostname or parts.path not in ("", "/"):
            raise PipelineError(f"{place} should be http://USER:PASSWORD@HOST:15672, the broker's HTTP listener")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{parts.scheme}://{host}:{port}", unquote(parts.username or "guest"), unquote(parts.password or "guest"))

    def document(self, path: str) -> Any:
        """What it answers there, decoded. Raises PipelineError."""
        request = urllib.request.Request(self.url + path)
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(200).decode(errors="replace").strip() or error.reason
            raise PipelineError(f"{self.url}{path} answered {error.code} to user '{self.user}': {said}") from None
        except urllib.error.URLError as error:
            raise PipelineError(f"{self.url} does not answer: {error.reason}; is the listener `http` on?") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PipelineError(f"{self.url}{path} answered something else than expected ({error}); is it Trellis?") from None
