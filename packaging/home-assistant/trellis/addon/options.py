"""Makes the settings of the broker from the options of the app.

Home Assistant checks the options against the schema in config.yaml, and writes them to
/data/options.json.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from trellis.auth.passwords import HASHER

#: The user names with which Home Assistant and other apps log in to the broker.
SYSTEM_USERS: Final = ("homeassistant", "addons")
#: The listeners without TLS, and those with TLS. The app's network options in Home Assistant decide
#: which of their ports are open.
PLAIN: Final = ("amqp", "mqtt", "ws", "http")
ENCRYPTED: Final = ("amqps", "mqtts", "wss")


class OptionsError(Exception):
    """Raised if an option of the app is invalid. The text names the option and the remedy."""


class AppLogin(msgspec.Struct, frozen=True):
    """A user of the broker: an entry of the option `logins`, or a system user of the app."""

    username: str
    password: str
    rules: tuple[str, ...] = ()
    administrator: bool = False


class Options(msgspec.Struct, frozen=True):
    """The options of the app."""

    logins: tuple[AppLogin, ...] = ()
    certfile: str = "fullchain.pem"
    keyfile: str = "privkey.pem"
    cafile: str = ""
    require_certificate: bool = False
    log_level: str = "info"


class Folders(msgspec.Struct, frozen=True):
    """The folders of the app's container."""

    #: The options, the passwords of the system users, and the broker's data directory.
    data: Path
    #: The certificates of Home Assistant.
    ssl: Path
    #: The settings that the app makes at each start, and copies of the certificates for the broker.
    run: Path
    #: The folder of the app in which the user may place trellis.toml.
    config: Path

    @property
    def settings(self) -> tuple[Path, ...]:
        """The settings files: the app's file, and trellis.toml of the user if it exists."""
        own = self.config / "trellis.toml"
        return (self.run / "broker.toml", *((own,) if own.exists() else ()))


def read_options(file: Path) -> Options:
    """Return the options in a file. Raises OptionsError."""
    try:
        options = msgspec.json.decode(file.read_bytes(), type=Options)
    except (OSError, msgspec.MsgspecError) as error:
        raise OptionsError(f"cannot read the options in {file}: {error}") from None
    names = [login.username for login in options.logins]
    for login in options.logins:
        if login.username in SYSTEM_USERS:
            raise OptionsError(
                f"logins: '{login.username}' is reserved for the app; choose another name"
            )
        if names.count(login.username) > 1:
            raise OptionsError(f"logins: '{login.username}' occurs twice; remove one login")
        if not login.username or not login.password:
            raise OptionsError(f"logins: login '{login.username}' needs a user name and a password")
    return options


def system_passwords(file: Path) -> dict[str, str]:
    """Return the passwords of SYSTEM_USERS in a file; make and store the missing passwords.

    Only root can read the file.
    """
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        stored = {}
    passwords = {name: stored.get(name) or secrets.token_urlsafe(32) for name in SYSTEM_USERS}
    if passwords != stored:
        written = file.with_suffix(".new")
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(passwords))
        written.replace(file)
    return passwords


def write_settings(options: Options, passwords: Mapping[str, str], folders: Folders) -> None:
    """Write the settings of the broker, and copy the certificates that they name.

    Raises OptionsError if a file of the options is missing.
    """
    folders.run.mkdir(parents=True, exist_ok=True)
    tls = _copy_certificates(options, folders)
    text = "\n".join((*_listeners(options, tls), *_rest(options, tls, folders)))
    users = [AppLogin(name, password) for name, password in passwords.items()]
    text += "".join(_user(login) for login in (*users, *options.logins))
    _write(folders.settings[0], text.encode())


def _copy_certificates(options: Options, folders: Folders) -> dict[str, Path]:
    """Copy the certificates to the folder `run`; return setting name -> path of the copy.

    The broker needs copies, because it does not run as root, and only root can read the folder of
    the certificates. Return {} if the certificate does not exist: then no port has TLS. Raises
    OptionsError.
    """
    names = {"certificate": options.certfile, "key": options.keyfile}
    if options.require_certificate:
        if not options.cafile:
            raise OptionsError("require_certificate needs the option cafile, which is empty")
        names["ca"] = options.cafile
    if not (folders.ssl / options.certfile).is_file():
        if options.require_certificate:
            raise OptionsError(
                f"certfile: {folders.ssl / options.certfile} does not exist, and "
                "require_certificate needs it"
            )
        return {}
    copies: dict[str, Path] = {}
    for setting, name in names.items():
        file, copies[setting] = folders.ssl / name, folders.run / f"{setting}.pem"
        try:
            _write(copies[setting], file.read_bytes())
        except OSError as error:
            raise OptionsError(f"cannot read {file}: {error.strerror}") from None
    return copies


def _write(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def _listeners(options: Options, tls: Mapping[str, Path]) -> Iterator[str]:
    for name in (*PLAIN, *(ENCRYPTED if tls else ())):
        yield f'[{name}]\nenabled = true\nhost = "0.0.0.0"'
        if name == "mqtt":
            yield "anonymous = false"
        if name in ENCRYPTED and options.require_certificate:
            yield 'client_certificate = "required"'
    if tls:
        yield "[tls]"
        yield from (f"{setting} = {_quoted(str(file))}" for setting, file in tls.items())


def _rest(options: Options, tls: Mapping[str, Path], folders: Folders) -> Iterator[str]:
    yield f"[data]\ndir = {_quoted(str(folders.data / 'trellis'))}"
    # Home Assistant often runs on a machine with little memory, which other programs need, too.
    yield "[limits]\nmemory = 0.25"
    # The broker reserves twice this size on the disk.
    yield "[store]\nsegment = 16_777_216"
    yield "[auth]\nguest = false"
    yield f"[log]\nlevel = {_quoted(options.log_level)}\n"


def _user(login: AppLogin) -> str:
    rules = ", ".join(map(_quoted, login.rules))
    return (
        f"\n[[users]]\nname = {_quoted(login.username)}\n"
        f"password_hash = {_quoted(HASHER.hash(login.password))}\n"
        f"administrator = {_quoted(login.administrator)}\nrules = [{rules}]\n"
    )


def _quoted(value: str | bool) -> str:
    """Return a text or a truth value as TOML, in JSON's notation; escape DEL, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
