"""The options of the app, and the settings of the broker that follow from them.

Home Assistant writes the options to /data/options.json, and checks them against the schema in
config.yaml before.
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

#: The user of Home Assistant, and the user of other apps.
SYSTEM_USERS: Final = ("homeassistant", "addons")
#: The listeners with and without TLS. Home Assistant decides which of their ports are reachable.
PLAIN: Final = ("amqp", "mqtt", "ws", "http")
ENCRYPTED: Final = ("amqps", "mqtts", "wss")


class OptionsError(Exception):
    """The options cannot be used; the text names the option and the remedy."""


class AppLogin(msgspec.Struct, frozen=True):
    """A user of the broker."""

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
    #: The settings for this run, and copies of the certificates that the broker can read.
    run: Path
    #: The folder of the app in which the user may place trellis.toml.
    config: Path

    @property
    def settings(self) -> tuple[Path, ...]:
        """The settings files: those that the options give, and the user's file if it exists."""
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
                f"logins: '{login.username}' is the name of a user that the app makes; take another"
            )
        if names.count(login.username) > 1:
            raise OptionsError(f"logins: '{login.username}' occurs twice; remove one login")
        if not login.username or not login.password:
            raise OptionsError(f"logins: '{login.username}' needs a user name and a password")
    return options


def system_passwords(file: Path) -> dict[str, str]:
    """Return the passwords of the system users: those in the file, or new ones, which are stored.

    The file can be read by root only.
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
    """Copy the certificates to the folder of this run; return the paths by the setting's name.

    Return {} if the certificate does not exist: then no port has TLS. The broker does not run as
    root, and only root can read the folder of the certificates.
    """
    names = {"certificate": options.certfile, "key": options.keyfile}
    if options.require_certificate:
        if not options.cafile:
            raise OptionsError("require_certificate needs the option cafile")
        names["ca"] = options.cafile
    if not (folders.ssl / options.certfile).is_file():
        if options.require_certificate:
            raise OptionsError(f"certfile: {folders.ssl / options.certfile} does not exist")
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
    # The machine has little memory, and other programs need it.
    yield "[limits]\nmemory = 0.25"
    # The reserve on the disk has twice this size.
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
    """Return a text or a truth value as TOML: JSON's notation, which escapes control characters."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
