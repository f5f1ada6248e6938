"""A TLS 1.3 client that can make records which the standard library does not make."""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: Types of the content of a record (RFC 8446 section 5.1).
HANDSHAKE: Final = 22
DATA: Final = 23
#: The KeyUpdate message that requests a KeyUpdate message of the peer (section 4.6.3).
_KEY_UPDATE: Final = b"\x18\x00\x00\x01\x01"
_HASH: Final = hashlib.sha384
_KEY_SIZE: Final = 32


class TlsClient:
    """The client's side of one TLS connection, in memory.

    Pass its output (`handshake`, `data`) to the server, and the server's output to `receive`. The
    methods `key_update` and `record` make single records; after the first of these calls, the
    methods of the standard library (`data`, `close_notify`) cannot be used any more.
    """

    def __init__(self, context: ssl.SSLContext, secrets: Path) -> None:
        """Begin a connection; OpenSSL writes its TLS keys to the new file `secrets`."""
        context.keylog_filename = str(secrets)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._secrets = secrets
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, False, "localhost")
        self._secret = b""
        self._sequence = 0

    def handshake(self, received: bytes = b"") -> bytes:
        """Continue the handshake with the server's output, and return this client's output."""
        if received:
            self._in.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._out.read()

    @property
    def complete(self) -> bool:
        """True if the handshake is complete."""
        return self._tls.cipher() is not None and b"CLIENT_TRAFFIC" in self._secrets.read_bytes()

    def receive(self, received: bytes) -> bytes:
        """Decrypt the server's output, and return the application data in it."""
        self._in.write(received)
        data = b""
        try:
            while True:
                data += self._tls.read()
        except ssl.SSLWantReadError:
            return data

    def data(self, data: bytes) -> bytes:
        """Return encrypted records with this application data."""
        self._tls.write(data)
        return self._out.read()

    def close_notify(self) -> bytes:
        """Return the record that ends this client's output."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        return self._out.read()

    def key_update(self, sent: int = 0) -> bytes:
        """Return a record with a KeyUpdate message; further records use the new key.

        `sent` is the number of records that the method `data` has returned.
        """
        self._sequence += sent
        record = self.record(_KEY_UPDATE, HANDSHAKE)
        self._secret = _expanded(self._secret, b"traffic upd", _HASH().digest_size)
        self._sequence = 0
        return record

    def record(self, content: bytes, kind: int) -> bytes:
        """Return a record with this content; `kind` is HANDSHAKE or DATA."""
        if not self._secret:
            line = re.search(rb"CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)", self._secrets.read_bytes())
            assert line is not None
            self._secret = bytes.fromhex(line[1].decode())
            cipher = self._tls.cipher()
            assert cipher is not None
            assert cipher[0] == "TLS_AES_256_GCM_SHA384"
        head = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        start = int.from_bytes(_expanded(self._secret, b"iv", 12), "big")
        nonce = (start ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        key = _expanded(self._secret, b"key", _KEY_SIZE)
        return head + AESGCM(key).encrypt(nonce, content + bytes([kind]), head)


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """Return HKDF-Expand-Label of RFC 8446 section 7.1 with an empty context."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return hmac.digest(secret, info + b"\1", _HASH)[:size]
