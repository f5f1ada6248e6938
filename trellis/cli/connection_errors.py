"""Error texts of commands that get no HTTP answer: why there is none, and what to do."""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from trellis.cli.wrong_port import port_hint

#: Largest number of bytes of an unexpected answer, or of characters of a reason, that an error text
#: quotes.
SHOWN: Final = 1_000
_START: Final = "start the broker, or give its URL with --url"
#: First characters of a TLS record with an alert: type 21, major version 3 (RFC 8446, section 5.1).
#: A server with TLS sends an alert to a client without TLS.
_TLS_ALERT: Final = "\x15\x03"
#: Errors of a connection that the server has closed without an answer.
_ENDED: Final = (http.client.RemoteDisconnected, ConnectionError)


def connection_error(error: Exception, scheme: str, host: str, section: str) -> str:
    """Return the error text of a request to `scheme`://`host` that got no HTTP answer.

    `section` names the listener that the command needs: `http` or `metrics`.
    """
    cause = getattr(error, "reason", error)
    reason = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:SHOWN]
    place = f"{scheme}://{host}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        detail = cause.verify_message or reason
        return (
            f"the certificate of {place} is not accepted ({detail}); give a URL whose host name is "
            "in the certificate, and set SSL_CERT_FILE to the file of its certificate authority"
        )
    if isinstance(cause, ssl.SSLError):
        return (
            f"{place} answers without TLS, or refuses the TLS connection ({reason}); for a port "
            f"without TLS, give http://{host}; {port_hint(section)}"
        )
    if isinstance(cause, ConnectionRefusedError | TimeoutError):
        return f"no answer from {place} ({reason}); {_START}"
    if isinstance(cause, _ENDED):
        secure = f" (for TLS, give https://{host})" if scheme == "http" else ""
        return (
            f"{place} closed the connection without an HTTP answer: another protocol answers at "
            f"this port{secure}; {port_hint(section)}"
        )
    if isinstance(cause, http.client.BadStatusLine):
        if str(cause).startswith(_TLS_ALERT):
            return f"{place} answers with TLS: give https://{host}"
        return (
            f"{place} does not speak HTTP: another protocol answers at this port; "
            f"{port_hint(section)}"
        )
    if isinstance(cause, http.client.IncompleteRead):
        return f"{place} closed the connection before the end of its answer; try again"
    return f"no answer from {place} ({reason}); check the host name and the network"
