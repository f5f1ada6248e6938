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
    """A certificate authority that writes signed certificates into a directory. Each file holds the
    key, then the certificate.
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
        """Sign a certificate for these host names, IP addresses or e-mail addresses.

        Return the path of its file. Without `file`, the file is named after `common_name` or the
        first name. Without `ends`, the certificate stays valid for longer than any test.
        """
        path = self._directory / (file or f"{common_name or names[0]}.pem")
        issued = self._ca.issue_cert(*names, common_name=common_name, not_after=ends)
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def sign_names(self, names: bytes, common_name: str) -> Path:
        """Sign a certificate whose extension subjectAltName holds these bytes; return the file."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        now = datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        builder = x509.CertificateBuilder(issuer.subject, subject, key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(
            now + timedelta(days=1)
        )
        extension = x509.UnrecognizedExtension(
            x509.oid.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names
        )
        signed = builder.add_extension(extension, False).sign(self._key(), hashes.SHA256())
        path = self._directory / f"{common_name}-names.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + signed.public_bytes(serialization.Encoding.PEM)
        )
        return path

    def _key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

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
        """Write a certificate revocation list (CRL) with these certificates; return its file.

        The list is valid for `days` days.
        """
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
        crl = revoked.sign(self._key(), hashes.SHA256())
        path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        return path
