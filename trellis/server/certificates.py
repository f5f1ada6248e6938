"""Certificates: read the files of the settings, and make the TLS contexts of the listeners.

Defaults follow Mozilla's "intermediate" recommendation: TLS 1.2 and 1.3, forward secrecy,
authenticated encryption, no compression, no renegotiation. A problem with a file raises a
SettingsError with a text of one line.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trellis import logs
from trellis.settings import Http, Settings, SettingsError, TlsListener
from trellis.settings.listeners import Tls

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Ciphers allowed for TLS 1.2; all ciphers of TLS 1.3 are allowed.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: A warning is logged if a certificate expires in less than this number of seconds.
SOON: Final = 14 * 86_400
#: Number of times that the files are read if a renewal changes them while they are read.
READS_MAX: Final = 10

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
#: The blocks of a PEM file, which may contain other blocks and text around them.
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----.+?"
    rb"-----END (?:TRUSTED |X509 )?CERTIFICATE-----",
    re.DOTALL,
)
_CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_FOREIGN_KEY: Final = (
    "the key in {key} does not belong to the certificate in {certificate}; give the key for which "
    "the certificate was made"
)
#: Explanations of errors in files, by OpenSSL's name of the error.
_MEANINGS: Final = {
    "KEY_VALUES_MISMATCH": _FOREIGN_KEY,
    "KEY_TYPE_MISMATCH": _FOREIGN_KEY,
    "EE_KEY_TOO_SMALL": "the key of the certificate in {certificate} is too short to be safe; make "
    "a key of 2048 bits (RSA) or 256 bits (EC), or more",
    "CA_MD_TOO_WEAK": "the certificate in {certificate} is signed with a hash that is not safe any "
    "more; make a new certificate",
}


class TlsContext:
    """The TLS context of one listener.

    A reload replaces `context`; open connections keep the old context.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context


class CertificateFiles:
    """The certificates that the settings name, as read from their files.

    The constructor raises SettingsError if a file cannot be used.

    `contexts` are new TLS contexts by listener name. `times` are the times at which each
    certificate begins to be valid and expires, by file name, in seconds since 1970. `contents` has
    the contents of all files by name, for the gateway of the HTTP API; it is empty without HTTPS.
    """

    def __init__(self, settings: Settings) -> None:
        self.contexts: dict[str, ssl.SSLContext] = {}
        self.contents: dict[str, bytes] = {}
        self.times: dict[str, tuple[float, float]] = {}
        self._crl = settings.tls.crl
        self._revocations: list[float] = []
        if uses_tls(settings):
            self._read_unchanged(settings)

    def _read_unchanged(self, settings: Settings) -> None:
        """Read the files; read them again if a renewal has changed them during the reading.

        OpenSSL reads each file from the disk for each listener. So the contents of the files before
        and after the reading are compared: listeners, gateway and expirations must not have
        certificates of different renewals. Raises SettingsError.
        """
        contents = _contents(settings.tls)
        for _ in range(READS_MAX):
            before = contents
            try:
                self._read(settings)
            except SettingsError:
                contents = _contents(settings.tls)
                if contents == before:
                    raise
                continue
            contents = _contents(settings.tls)
            if contents == before:
                self.contents = contents if "http" in self.contexts else {}
                return
        raise SettingsError(
            "tls", "the files of certificates changed while they were read; wait, and try again"
        )

    def _read(self, settings: Settings) -> None:
        self.contexts = contexts(settings)
        self.times = {}
        if self.contexts:
            names = settings.tls.names
            for where, file in [
                ("tls", settings.tls.certificate),
                *((f'tls.names."{name}"', files["certificate"]) for name, files in names.items()),
            ]:
                self.times[file] = _checked_times(file, where)
            self._revocations = _revocations(self._crl) if self._crl else []

    def log_problems(self) -> None:
        """Log a warning for each problem.

        A certificate has a problem if it has expired, expires soon or is not valid yet. A
        revocation list has a problem if it has expired.
        """
        now = time.time()
        for file, (begins, ends) in self.times.items():
            day = time.strftime("%Y-%m-%d", time.gmtime(begins if begins > now else ends))
            if begins > now:
                logs.warning(
                    "certificate_not_yet_valid",
                    file=file,
                    begins=day,
                    note="clients refuse the certificate until this date",
                )
            elif ends <= now:
                logs.warning(
                    "certificate_expired",
                    file=file,
                    ended=day,
                    note="clients refuse the certificate; renew it, then send SIGHUP",
                )
            elif ends <= now + SOON:
                logs.warning(
                    "certificate_expires_soon",
                    file=file,
                    ends=day,
                    note="renew the certificate, then send SIGHUP",
                )
        for ends in self._revocations:
            if ends <= now:
                logs.warning(
                    "revocation_list_expired",
                    file=self._crl,
                    ended=time.strftime("%Y-%m-%d", time.gmtime(ends)),
                    note="all client certificates of the authority that signed this list are "
                    "refused; renew the list, then send SIGHUP",
                )


class Certificates:
    """The TLS contexts of all listeners that use TLS, and the expirations of their certificates."""

    def __init__(self, settings: Settings) -> None:
        files = CertificateFiles(settings)
        #: Contexts by listener name.
        self.contexts = {name: TlsContext(context) for name, context in files.contexts.items()}
        #: Expiration of each certificate by file name, in seconds since 1970.
        self.expirations: dict[str, float] = {}
        #: The contents of the files in force by name, for the gateway of the HTTP API.
        self.contents: dict[str, bytes] = {}
        self._apply(files)

    def use(self, files: CertificateFiles) -> None:
        """Use the certificates in `files` for new connections; open connections keep the old ones.

        A reload calls this method after the files were read again.
        """
        for name, context in files.contexts.items():
            if name in self.contexts:
                self.contexts[name].context = context
        if self.contexts:
            self._apply(files)

    def _apply(self, files: CertificateFiles) -> None:
        self.expirations = {file: ends for file, (_, ends) in files.times.items()}
        self.contents = files.contents
        files.log_problems()


def _contents(tls: Tls) -> dict[str, bytes]:
    """Return the contents of the files that the settings name, by file name.

    Files that cannot be read are left out: no listener uses them.
    """
    contents: dict[str, bytes] = {}
    names = [name for files in tls.names.values() for name in files.values()]
    for name in (tls.certificate, tls.key, tls.ca, tls.crl, *names):
        try:
            with open(os.path.expanduser(name), "rb") as opened:
                contents[name] = opened.read()
        except OSError:
            continue
    return contents


def uses_tls(settings: Settings) -> bool:
    """True if an enabled listener uses TLS."""
    protocols = settings.protocol_listeners.values()
    return any(isinstance(entry, TlsListener) for entry in protocols) or (
        settings.http.enabled and settings.http.tls
    )


def contexts(settings: Settings) -> dict[str, ssl.SSLContext]:
    """Return a TLS context for every enabled listener that uses TLS, by listener name.

    Raises SettingsError.
    """
    by_listener: dict[str, ssl.SSLContext] = {}
    for name, entry in settings.protocol_listeners.items():
        if isinstance(entry, TlsListener):
            by_listener[name] = _context(settings, entry)
    if settings.http.enabled and settings.http.tls:
        by_listener["http"] = _context(settings, settings.http)
    return by_listener


def _context(settings: Settings, entry: TlsListener | Http) -> ssl.SSLContext:
    tls = settings.tls
    context = _server(settings, entry, tls.certificate, tls.key, "tls")
    if tls.names:
        others = {
            name.lower(): _server(
                settings, entry, files["certificate"], files.get("key", ""), f'tls.names."{name}"'
            )
            for name, files in tls.names.items()
        }

        def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            """Use the certificate for `name`, the host name that the client requests (RFC 6066
            section 3).

            A certificate for `*.example.org` serves each name with one label in place of `*`.
            OpenSSL calls this function during the handshake.
            """
            requested = (name or "").lower()
            chosen = others.get(requested) or others.get("*." + requested.partition(".")[2])
            if chosen is not None:
                connection.context = chosen

        context.sni_callback = choose
        if not isinstance(sys.unraisablehook, UnraisableHook):
            sys.unraisablehook = UnraisableHook(sys.unraisablehook)
    return context


class UnraisableHook:
    """Python's hook for unraisable exceptions; it ignores exceptions about requested host names.

    If a client requests a host name that is not ASCII, the standard library ends the handshake
    before it calls `sni_callback`, and passes an exception to this hook. The default hook writes a
    traceback, so clients without a login could fill the log.
    """

    def __init__(self, other: Callable[[UnraisableHookArgs], object]) -> None:
        self._other = other

    def __call__(self, unraisable: UnraisableHookArgs) -> None:
        """Report an exception, unless its object is the host name that a client requests."""
        if not (
            isinstance(unraisable.exc_value, UnicodeDecodeError)
            and isinstance(unraisable.object, bytes)
        ):
            self._other(unraisable)


def _server(
    settings: Settings, entry: TlsListener | Http, certificate: str, key: str, where: str
) -> ssl.SSLContext:
    """Return a listener's TLS context with one certificate. Raises SettingsError.

    `where` is the settings key of the certificate, for errors.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.tls.minimum]
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _load(context, certificate, key, where)
    context.verify_mode = _MODES[entry.client_certificate]
    if entry.client_certificate != "none":
        ca = settings.tls.ca
        _readable(ca, "tls.ca")
        try:
            context.load_verify_locations(os.path.expanduser(ca))
        except ssl.SSLError as error:
            raise SettingsError(
                "tls.ca",
                f"{ca} holds no certificate that can be read ({_short(error)}); "
                "give a PEM file, beginning -----BEGIN CERTIFICATE-----",
            ) from None
        if settings.tls.crl:
            _load_revocations(context, settings.tls.crl)
    return context


def _load_revocations(context: ssl.SSLContext, file: str) -> None:
    """Make a context refuse the client certificates that a revocation list names.

    Raises SettingsError.
    """
    _revocations(file)
    context.load_verify_locations(os.path.expanduser(file))
    # OpenSSL refuses certificates of an authority whose list is missing or has expired.
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _revocations(file: str) -> list[float]:
    """Return the time at which each revocation list in a PEM file expires, in seconds since 1970.

    A list without such a time does not expire, and is left out. Raises SettingsError.
    """
    from cryptography import x509

    _readable(file, "tls.crl")
    with open(os.path.expanduser(file), "rb") as opened:
        blocks = _CRL.findall(opened.read())
    try:
        if not blocks:
            raise ValueError("no PEM block X509 CRL")
        ends = [x509.load_pem_x509_crl(block).next_update_utc for block in blocks]
    except ValueError as error:
        raise SettingsError(
            "tls.crl",
            f"{file} holds no revocation list that can be read ({error}); give a PEM file, "
            "beginning -----BEGIN X509 CRL-----",
        ) from None
    return [end.timestamp() for end in ends if end is not None]


class _Encrypted(Exception):
    """Raised if a private key is encrypted, before OpenSSL prompts for the password."""


def _load(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Load a certificate and its key into a context. Raises SettingsError."""
    _readable(certificate, f"{where}.certificate")
    if key:
        _readable(key, f"{where}.key")
    _checked_times(certificate, where)

    def password() -> str:
        raise _Encrypted  # Otherwise OpenSSL would ask for the password at the terminal.

    holder, name = (key, f"{where}.key") if key else (certificate, f"{where}.certificate")
    try:
        context.load_cert_chain(
            os.path.expanduser(certificate), os.path.expanduser(key) if key else None, password
        )
    except _Encrypted:
        raise SettingsError(
            name,
            f"the key in {holder} has a password; remove the password (openssl pkey -in FILE "
            "-out NEW), and let no other user read the file",
        ) from None
    except ssl.SSLError as error:
        meaning = _MEANINGS.get(getattr(error, "reason", ""))
        if meaning:
            what = meaning.format(key=holder, certificate=certificate)
        else:
            hint = "give a PEM file" if key else f"set {where}.key to the PEM file with the key"
            what = f"{holder} holds no private key that can be read ({_short(error)}); {hint}"
        raise SettingsError(name, what) from None


def _readable(file: str, key: str) -> None:
    """Raise SettingsError unless this process may read the file."""
    try:
        with open(os.path.expanduser(file), "rb") as opened:
            opened.read(1)
    except OSError as error:
        raise SettingsError(
            key,
            f"{file} cannot be read ({error.strerror}); give a PEM file that the broker's user may "
            "read",
        ) from None


def _checked_times(file: str, where: str) -> tuple[float, float]:
    """Return when the certificate in a PEM file begins to be valid, and when it expires.

    Both times are in seconds since 1970. Raises SettingsError if the file has no certificate or
    cannot be read; `where` is the settings key of the certificate, for the error.
    """
    _readable(file, f"{where}.certificate")
    try:
        return _times(file)
    except ValueError as error:
        raise SettingsError(
            f"{where}.certificate",
            f"{file} holds no certificate that can be read ({error}); give a PEM "
            "file, beginning -----BEGIN CERTIFICATE-----",
        ) from None


def _times(file: str) -> tuple[float, float]:
    """Return when the first certificate of a PEM file begins to be valid, and when it expires.

    Both times are in seconds since 1970. Raises ValueError if the file has no certificate.
    """
    # Imported here, because the package takes memory, and only brokers with TLS need it.
    from cryptography import x509

    with open(os.path.expanduser(file), "rb") as opened:
        blocks = _CERTIFICATE.search(opened.read())
    if blocks is None:
        raise ValueError("no PEM block CERTIFICATE")
    read = x509.load_pem_x509_certificate(blocks[0])
    return read.not_valid_before_utc.timestamp(), read.not_valid_after_utc.timestamp()


def _short(error: ssl.SSLError) -> str:
    return str(getattr(error, "reason", "") or error.args[0]).replace("_", " ").lower()
