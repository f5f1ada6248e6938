"""A certificate authority for tests: it signs certificates into files of a temporary directory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


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

    def revoke(self, *certificates: Path, days: int = 1) -> Path:
        """Return the file of a revocation list that names certificates, valid for some days."""
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        now = datetime.now(UTC)
        revoked = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
        revoked = revoked.last_update(now - timedelta(days=2)).next_update(
            now + timedelta(days=days)
        )
        for certificate in certificates:
            number = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number)
            entry = entry.revocation_date(now - timedelta(days=2))
            revoked = revoked.add_revoked_certificate(entry.build())
        path = self._directory / "revoked.pem"
        made = revoked.sign(key, hashes.SHA256())
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path
