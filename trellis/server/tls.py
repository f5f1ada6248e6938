"""TLS over memory buffers: decrypts input for a connection, and encrypts its output.

    transport -> incoming BIO -> SSLObject -> connection
    transport <- outgoing BIO <- SSLObject <- connection     (one write for each turn)

Event loops have TLS of their own. This implementation costs less, and its handshakes wait in the
login queue, as all input before a login does: see docs/decisions/0011-tls-over-memory.md.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from protocols.layer import Layer
from protocols.peer import Peer

#: Largest number of data bytes in one TLS record (RFC 8446 section 5.1).
RECORD: Final = 1 << 14
#: Size of the header of a TLS record, in bytes. Its last two bytes are the length of the rest.
_HEADER: Final[i64] = 5
#: Largest number of TLS records that OpenSSL decodes in one call of `receive`. Most records take
#: 1 us. A record with a KeyUpdate message (RFC 8446 section 4.6.3) takes 15 us and has 27 bytes, so
#: one chunk from the socket could take 140 ms.
RECORDS_MAX: Final[i64] = 128
#: Number of bytes that are passed to or taken from OpenSSL at a time, plus the last record. The
#: memory BIO of a connection keeps the memory of the most bytes that it ever held: without this
#: limit, a connection over which 1 MB was sent would take 1.4 MB more until it ends.
PIECE_BYTES: Final[i64] = 1 << 16

#: Reasons in the metrics by the name of the error in OpenSSL.
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
#: All reasons of failed TLS connections: the values of REASONS, and three without an OpenSSL error:
#: the client refuses the server's certificate, disconnects during the handshake, or takes too long
#: for the handshake.
FAILURES: Final = (*sorted(set(REASONS.values())), "refused_by_client", "lost", "timeout")


class TlsTally:
    """Counters of the TLS handshakes of one listener."""

    def __init__(self) -> None:
        #: Number of completed handshakes by TLS version.
        self.handshakes = {"TLSv1.2": 0, "TLSv1.3": 0}
        #: Number of handshakes that resumed an earlier TLS session.
        self.resumed = 0
        #: Number of failed TLS connections by reason.
        self.failures = dict.fromkeys(FAILURES, 0)


class TlsLayer(Layer):
    """The server's side of one TLS connection.

    After the handshake, `peer.certificate` is the name in the client's valid certificate: the value
    of its field `name_from` (see `name_of`). If `name_from` is "", no name is read.
    """

    def __init__(
        self, context: ssl.SSLContext, peer: Peer, tally: TlsTally, name_from: str
    ) -> None:
        super().__init__()
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, True)
        self._peer = peer
        self._counters = tally
        self._name_from = name_from
        #: The record that the input has reached: number of its missing bytes, or the part of its
        #: header that was received so far.
        self._left: i64 = 0
        self._header = b""

    def piece_end(self, data: bytes, start: i64) -> i64:
        """Return the offset in `data` at which the next TLS records end. Hot path.

        These are RECORDS_MAX records, or fewer records with at least PIECE_BYTES bytes. The first
        of these records begins at `start`, or has begun in the previous chunk. Return len(data) if
        `data` has fewer records and bytes.
        """
        size: i64 = len(data)
        full: i64 = start + PIECE_BYTES
        end: i64 = start + self._left
        records: i64 = 0
        if self._header:
            header = self._header + data[start : start + _HEADER - len(self._header)]
            if len(header) < _HEADER:
                self._header = header
                return size
            end = start + _HEADER - len(self._header) + (i64(header[3]) << 8 | i64(header[4]))
            self._header = b""
            records = 1
        while records < RECORDS_MAX and end < full and end + _HEADER <= size:
            end += _HEADER + (i64(data[end + 3]) << 8 | i64(data[end + 4]))
            records += 1
        self._left = max(0, end - size)
        if end < size and end < full and records < RECORDS_MAX:
            self._header = data[end:]
            return size
        return min(end, size)

    def receive(self, data: bytes) -> bytes:
        """Decrypt input, and return the data for the connection; b"" during the handshake."""
        self._in.write(data)
        plain = b""
        try:
            if not self.open:
                self._ssl.do_handshake()
                self._finish_handshake()
            plain = self._read()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error, reason_of(error))
        except UnicodeDecodeError as unreadable:
            # The standard library expects UTF-8, and a name in the client's certificate is not
            # UTF-8.
            self._fail(unreadable, "bad_certificate")
        if self._out.pending > 0:
            self.speaks = True
        return plain

    def _finish_handshake(self) -> None:
        """Count a completed handshake, and read the client's certificate."""
        self.open = True
        counters = self._counters
        counters.handshakes[self._ssl.version() or "TLSv1.3"] += 1
        if self._ssl.session_reused:
            counters.resumed += 1
        certificate = self._ssl.getpeercert() if self._name_from else None
        if certificate:
            self._peer.certificate = name_of(certificate, self._name_from)

    def _read(self) -> bytes:
        """Return the decrypted data of all complete TLS records. Hot path, once per chunk."""
        tls, incoming = self._ssl, self._in
        parts: list[bytes] = []
        try:
            while True:
                plain: bytes = tls.read(RECORD)
                if not plain:
                    self.over = "lost"
                    break
                parts.append(plain)
                # These two calls cost less than the exception that another `read` would raise.
                if incoming.pending == 0 and tls.pending() == 0:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.over = "lost"  # The client sent close_notify.
        except ssl.SSLError as error:
            self._fail(error, reason_of(error))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fail(self, error: Exception, reason: str) -> None:
        if not self.over:
            self.over = "tls"
            self.refusal = (
                f"the TLS connection to listener {self._peer.listener} failed ({reason}): {error}"
            )
            self._counters.failures[reason] += 1

    def send(self, parts: list[bytes]) -> list[bytes]:
        """Encrypt output, as one TLS record if it fits. Hot path, once per turn."""
        self.speaks = False
        if parts and self.open:
            plain = parts[0] if len(parts) == 1 else b"".join(parts)
            if len(plain) > PIECE_BYTES:
                return self._send_pieces(plain)
            try:
                sent: i64 = self._ssl.write(plain)
                while sent < len(plain):
                    plain = plain[sent:]
                    sent = self._ssl.write(plain)
            except ssl.SSLError:
                # The read side has already failed with the same error.
                pass
        records = self._out.read()
        return [records] if records else []

    def _send_pieces(self, plain: bytes) -> list[bytes]:
        """Encrypt a large output, at most PIECE_BYTES at a time."""
        records: list[bytes] = []
        sent: i64 = 0
        try:
            while sent < len(plain):
                sent += self._ssl.write(plain[sent : sent + PIECE_BYTES])
                records.append(self._out.read())
        except ssl.SSLError:
            # The read side has already failed with the same error.
            records.append(self._out.read())
        return records

    def close(self, reason: str) -> None:
        """Send close_notify, which proves to the client that no attacker cut off the output.

        During the handshake, count a failed handshake instead; `reason` is why the connection ends.
        """
        if not self.open:
            self.on_closed(reason)
            return
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            # OpenSSL would wait for the client's close_notify; this layer does not.
            pass
        self.speaks = self._out.pending > 0

    def on_closed(self, reason: str) -> None:
        """Count a handshake that was not completed; `reason` is why the connection ended."""
        if not self.open and not self.over:
            self.over = "tls"
            self._counters.failures["timeout" if reason == "handshake_timeout" else "lost"] += 1


def reason_of(error: ssl.SSLError) -> str:
    """Return the reason under which the metrics count an error of OpenSSL."""
    reason = str(getattr(error, "reason", ""))  # Some errors have no reason.
    if "_ALERT_" in reason and reason not in REASONS:
        return "refused_by_client"
    return REASONS.get(reason, "malformed")


def name_of(certificate: Mapping[str, object], name_from: str) -> str:
    """Return the first name in a field of a client certificate; "" if the field is missing.

    `certificate` is a result of `getpeercert`; `name_from` is common_name, dns, email or uri.
    """
    candidates: list[str] = []
    if name_from == "common_name":
        subject = certificate.get("subject", ())
        assert isinstance(subject, tuple)
        candidates = [value for part in subject for key, value in part if key == "commonName"]
    else:
        wanted = {"dns": "DNS", "email": "email", "uri": "URI"}[name_from]
        names = certificate.get("subjectAltName", ())
        assert isinstance(names, tuple)
        candidates = [value for key, value in names if key == wanted]
    return candidates[0] if candidates else ""
