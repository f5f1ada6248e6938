"""Loads the PEM files of a link for each TLS connection, so that renewed files take effect."""

from __future__ import annotations

import ssl


def load_files(context: ssl.SSLContext, ca: str, certificate: str, key: str) -> None:
    """Load the authorities of the broker's certificate, and the certificate of the client.

    The arguments are paths. If `ca` is "", the authorities of the system are trusted. If
    `certificate` is "", there is no client certificate. If `key` is "", the key is in the file
    `certificate`. Raises OSError, which names the file.
    """
    try:
        if ca:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
    except OSError as error:
        place = ca or "the files of the system"
        raise _unreadable("the certificate authorities", place, error) from None
    if not certificate:
        return
    try:
        context.load_cert_chain(certificate, key or None)
    except OSError as error:
        place = f"{certificate} and {key}" if key else certificate
        raise _unreadable("the client certificate and its key", place, error) from None


def _unreadable(what: str, place: str, error: OSError) -> OSError:
    return OSError(f"cannot read {what} in {place}: {error.strerror or error}")
