"""Certificates for tests: an authority, and what it signs, in files that last as long as the test."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

import trustme


class Authority:
    """Signs certificates into a directory. Files hold the key, then the certificate."""

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
        """A certificate for these names (addresses and e-mail too), and its key, in one file."""
        path = self._directory / (file or f"{common_name or names[0]}.pem")
        made = self._ca.issue_cert(*names, common_name=common_name, not_after=ends)
        made.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def client(
        self, certificate: Path | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> ssl.SSLContext:
        """What a client trusts: this authority; and what it shows."""
        context = ssl.create_default_context(cafile=str(self.file))
        context.maximum_version = newest
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context
