"""TLS over memory: records in, octets out, and back. The sockets see records, the connections
octets.

    socket -> incoming BIO -> SSLObject -> octets          parts -> SSLObject -> outgoing BIO -> one write

The loops have TLS of their own. Ours costs less, and its handshakes wait in the lobby like all else
that strangers ask
for: see docs/decisions/0011-tls-over-memory.md.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from protocols.connection import Peer
from protocols.layer import Layer
from trellis import logs

#: Octets that one record holds at most (RFC 8446 section 5.1).
RECORD: Final = 1 << 14

#: What OpenSSL calls an error -> what the metrics call it.
REASONS: Final = {
    "HTTP_REQUEST": "not_tls",
    "HTTPS_PROXY_REQUEST": "not_tls",
    "WRONG_VERSION_NUMBER": "not_tls",
    "NOT_SSL_RECORD": "not_tls",
    "RECORD_LAYER_FAILURE": "not_tls",
    "PACKET_LENGTH_TOO_LONG": "not_tls",
    "BAD_RECORD_TYPE": "not_tls",
    "UNSUPPORTED_PROTOCOL": "version",
    "VERSION_TOO_LOW": "version",
    "TLSV1_ALERT_PROTOCOL_VERSION": "version",
    "NO_SHARED_CIPHER": "no_shared_cipher",
    "NO_SUITABLE_KEY_SHARE": "no_shared_cipher",
    "NO_SHARED_GROUP": "no_shared_cipher",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "no_shared_cipher",
    "NO_SHARED_SIGNATURE_ALGORITHMS": "no_shared_cipher",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "CERTIFICATE_VERIFY_FAILED": "bad_certificate",
    "CA_MD_TOO_WEAK": "bad_certificate",
    "EE_KEY_TOO_SMALL": "bad_certificate",
    "EXCESSIVE_MESSAGE_SIZE": "too_large",
    "EXCESSIVE_RECORD_SIZE": "too_large",
    "DATA_LENGTH_TOO_LONG": "too_large",
    "CERT_LENGTH_MISMATCH": "malformed",
}
#: Why a connection over TLS fails: what OpenSSL has words for; other nonsense; the client does not
#: want us; it left in the handshake, or took too long for it.
FAILURES: Final = (*sorted(set(REASONS.values())), "refused_by_client", "lost", "timeout")


class TlsTally:
    """What became of the handshakes of one listener."""

    def __init__(self) -> None:
        #: Handshakes by version of TLS; those of them that went on with an older session; failures
        #: by reason.
        self.handshakes = {"TLSv1.2": 0, "TLSv1.3": 0}
        self.resumed = 0
        self.failures = dict.fromkeys(FAILURES, 0)


class TlsLayer(Layer):
    """The server's end. Once open, the peer has the name that its certificate gives it under
    `name_from` (see `name_of`), if it sent one that is good; "" does not look."""

    def __init__(
        self, context: ssl.SSLContext, peer: Peer, tally: TlsTally, name_from: str
    ) -> None:
        super().__init__()
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, True)
        self._peer = peer
        self._tally = tally
        self._name_from = name_from

    def receive(self, data: bytes) -> bytes:
        self._in.write(data)
        octets = b""
        try:
            if not self.open:
                self._ssl.do_handshake()
                self._finish_handshake()
            octets = self._read()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        if self._out.pending > 0:
            self.speaks = True
        return octets

    def _finish_handshake(self) -> None:
        """The handshake is done."""
        self.open = True
        tally = self._tally
        tally.handshakes[self._ssl.version() or "TLSv1.3"] += 1
        if self._ssl.session_reused:
            tally.resumed += 1
        certificate = self._ssl.getpeercert() if self._name_from else None
        if certificate:
            self._peer.certificate = name_of(certificate, self._name_from)

    def _read(self) -> bytes:
        """All that the records hold. Hot path, once per chunk."""
        tls, incoming = self._ssl, self._in
        parts: list[bytes] = []
        try:
            while True:
                octets: bytes = tls.read(RECORD)
                if not octets:
                    self.over = "lost"
                    break
                parts.append(octets)
                # An exception for each chunk would cost more than to ask.
                if incoming.pending == 0 and tls.pending() == 0:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.over = "lost"  # The peer said that it ends here.
        except ssl.SSLError as error:
            self._fail(error)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fail(self, error: ssl.SSLError) -> None:
        if not self.over:
            self.over = "tls"
            self._tally.failures[reason_of(error)] += 1
            logs.debug(
                "tls_failed",
                listener=self._peer.entrance,
                peer=self._peer,
                reason=reason_of(error),
                error=error,
            )

    def send(self, parts: list[bytes]) -> list[bytes]:
        """One record a turn, as long as it fits in one. Hot path."""
        self.speaks = False
        if parts and self.open:
            octets = parts[0] if len(parts) == 1 else b"".join(parts)
            try:
                sent: i64 = self._ssl.write(octets)
                while sent < len(octets):
                    octets = octets[sent:]
                    sent = self._ssl.write(octets)
            except ssl.SSLError:
                # It failed in the other direction already.
                pass
        octets = self._out.read()
        return [octets] if octets else []

    def close(self, reason: str) -> None:
        """close_notify: an end that nobody else can feign."""
        if not self.open:
            self.on_closed(reason)
            return
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            # It would wait for the peer's. We do not.
            pass
        self.speaks = self._out.pending > 0

    def on_closed(self, reason: str) -> None:
        if not self.open and not self.over:
            self.over = "tls"
            self._tally.failures["timeout" if reason == "handshake_timeout" else "lost"] += 1


def reason_of(error: ssl.SSLError) -> str:
    """How the metrics name what OpenSSL says."""
    reason = str(getattr(error, "reason", ""))  # Some have none.
    if "_ALERT_" in reason and reason not in REASONS:
        return "refused_by_client"
    return REASONS.get(reason, "malformed")


def name_of(certificate: Mapping[str, object], name_from: str) -> str:
    """What a certificate (as `getpeercert` gives it) says of its owner under common_name, dns,
    email or uri: the first such name, "" when there is none."""
    found: list[str] = []
    if name_from == "common_name":
        subject = certificate.get("subject", ())
        assert isinstance(subject, tuple)
        found = [value for part in subject for key, value in part if key == "commonName"]
    else:
        wanted = {"dns": "DNS", "email": "email", "uri": "URI"}[name_from]
        names = certificate.get("subjectAltName", ())
        assert isinstance(names, tuple)
        found = [value for key, value in names if key == wanted]
    return found[0] if found else ""
