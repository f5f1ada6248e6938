"""A certificate authority for tests: it signs certificates into files of a temporary directory."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

import trustme


class Authority:
    """A certificate authority that signs into a directory. Each file holds the key, then the
    certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def sign(
        self,
        *names: str,
        common_name: str | None = None,
        ends: datetime | None = None,
        file: str = "",
    ) -> Path:
        """Sign a certificate for these names (also addresses or e-mail); return the file."""
        path = self._directory / (file or f"{common_name or names[0]}.pem")
        made = self._ca.issue_cert(*names, common_name=common_name, not_after=ends)
        made.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def client(
        self, certificate: Path | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts this authority and shows `certificate`."""
        context = ssl.create_default_context(cafile=str(self.file))
        context.maximum_version = newest
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context
