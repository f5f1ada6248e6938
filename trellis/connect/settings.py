"""The settings file of `trellis connect`, in TOML."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from trellis.connect.addresses import is_public
from trellis.connect.key_template import KAFKA_FIELDS, MESSAGE_FIELDS, KeyTemplate, TemplateError
from trellis.settings.errors import SettingsError, nearest
from trellis.settings.loading import read_password

#: The names of links: they are part of the names of queues, and labels of metrics.
_NAME: Final = r"^[A-Za-z0-9_-]{1,60}$"
#: Prefix of a secret of Standard Webhooks, and the permitted sizes of the secret's key in bytes.
SECRET_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
#: Options of Kafka's client that a link sets itself.
_OWN_OPTIONS: Final = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "group.id",
    }
)

Name = Annotated[str, Meta(pattern=_NAME)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
OptionValue = str | int | float | bool


class BrokerSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[broker]`: the address of the broker, and the login.

    `url` is amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://... for TLS. The password may be in
    the file `password_file` instead. `ca` is a PEM file of certificate authorities; "" means the
    authorities of the system.
    """

    url: str = "amqp://guest:guest@127.0.0.1:5672/"
    password_file: str = ""
    ca: str = ""


class HttpSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[http]`: the port of /metrics and /health."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 15_693


class SourceSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a link that reads a queue or a stream."""

    name: Name
    dead_letter: Annotated[str, Meta(min_length=1, max_length=255)]
    queue: str = ""
    stream: str = ""
    start: Literal["first", "next"] = "first"

    @property
    def prefetch(self) -> int:
        """Largest number of messages that the source has delivered and that are not settled yet."""
        raise NotImplementedError


class WebhookSection(SourceSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section `[[webhook]]`: a link to an HTTP service. Times are in seconds."""

    url: str
    secrets: list[str] = msgspec.field(default_factory=list)
    secret_files: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    ca: str = ""
    allow_private: bool = False
    in_flight: Annotated[int, Meta(ge=1, le=1_000)] = 8
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 1
    batch_wait: Annotated[float, Meta(ge=0, le=60)] = 0.1
    timeout: Annotated[float, Meta(gt=0, le=600)] = 15.0
    attempts: Annotated[int, Meta(ge=1, le=1_000)] = 10
    retry_first: Seconds = 1.0
    retry_max: Seconds = 300.0

    @property
    def prefetch(self) -> int:
        """Largest number of messages that the source has delivered and that are not settled yet."""
        return min(self.in_flight * self.batch, 10_000)


class ToKafkaSection(SourceSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section `[[to_kafka]]`: a link from a queue or a stream to a topic of Kafka."""

    servers: str
    topic: str
    key: str = "{routing_key}"
    in_flight: Count = 1_000
    options: dict[str, OptionValue] = msgspec.field(default_factory=dict)

    @property
    def prefetch(self) -> int:
        """Largest number of messages that the source has delivered and that are not settled yet."""
        return self.in_flight


class FromKafkaSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section `[[from_kafka]]`: a link from topics of Kafka to an exchange."""

    name: Name
    servers: str
    topics: Annotated[list[str], Meta(min_length=1)]
    group: str
    exchange: str = "amq.topic"
    routing_key: str = "{kafka_topic}"
    unroutable: Literal["wait", "drop"] = "wait"
    in_flight: Count = 500
    options: dict[str, OptionValue] = msgspec.field(default_factory=dict)


class ConnectSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one process of `trellis connect`; each attribute is a section."""

    broker: BrokerSection = msgspec.field(default_factory=BrokerSection)
    http: HttpSection = msgspec.field(default_factory=HttpSection)
    webhook: list[WebhookSection] = msgspec.field(default_factory=list)
    to_kafka: list[ToKafkaSection] = msgspec.field(default_factory=list)
    from_kafka: list[FromKafkaSection] = msgspec.field(default_factory=list)


#: The sections by their name in the file.
_SECTIONS: Final[dict[str, type[Struct]]] = {
    "": ConnectSettings,
    "broker": BrokerSection,
    "http": HttpSection,
    "webhook": WebhookSection,
    "to_kafka": ToKafkaSection,
    "from_kafka": FromKafkaSection,
}


def load(path: Path) -> ConnectSettings:
    """Return the settings of a file, checked. Raises SettingsError."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise SettingsError(str(path), f"the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingsError(str(path), "the file must be UTF-8 text") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> ConnectSettings:
    """Return checked settings from TOML; errors name the file `where`. Raises SettingsError."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(where, f"the file is not valid TOML: {error}") from None
    try:
        settings = msgspec.convert(tree, ConnectSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(where, *_explained(str(error))) from None
    try:
        _check(settings)
    except _Wrong as error:
        raise SettingsError(where, *error.args) from None
    return settings


def broker_url(section: BrokerSection) -> str:
    """Return the URL of the broker with the password of `password_file`. Raises SettingsError."""
    if not section.password_file:
        return section.url
    try:
        password = read_password(section.password_file)
    except ValueError as error:
        raise SettingsError("broker.password_file", str(error)) from None
    url = urlsplit(section.url)
    login = f"{url.username or 'guest'}:{_quoted(password)}"
    return url._replace(netloc=f"{login}@{url.netloc.rpartition('@')[2]}").geturl()


def keys_of(section: WebhookSection) -> list[bytes]:
    """Return the keys that sign the requests, in the order of the settings. Raises SettingsError.

    The keys of `secrets` come before the keys of `secret_files`.
    """
    texts = list(section.secrets)
    for file in section.secret_files:
        try:
            texts.append(read_password(file))
        except ValueError as error:
            raise SettingsError(f"webhook {section.name}: secret_files", str(error)) from None
    try:
        return [_key(text) for text in texts]
    except ValueError as error:
        raise SettingsError(
            f"webhook {section.name}: secrets or secret_files", str(error)
        ) from None


def new_secret() -> str:
    """Return a new secret of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(os.urandom(32)).decode()


class _Wrong(Exception):
    """Raised if a setting is wrong. The arguments are the key of the setting and the problem."""


def _check(settings: ConnectSettings) -> None:
    names = [link.name for link in settings.webhook]
    names += [link.name for link in settings.to_kafka]
    names += [link.name for link in settings.from_kafka]
    if not names:
        raise _Wrong(
            "the file defines no link: add a section [[webhook]], [[to_kafka]] or [[from_kafka]]"
        )
    for name in names:
        if names.count(name) > 1:
            raise _Wrong("name", f"two links have the name '{name}': rename one of them")
    url = urlsplit(settings.broker.url)
    if url.scheme not in ("amqp", "amqps") or not url.hostname:
        raise _Wrong("broker.url", "must be amqp://USER:PASSWORD@HOST:PORT/VHOST or amqps://...")
    for source in (*settings.webhook, *settings.to_kafka):
        if bool(source.queue) == bool(source.stream):
            raise _Wrong(f"link {source.name}", "set exactly one of `queue` and `stream`")
        if source.dead_letter in (source.queue, source.stream):
            raise _Wrong(
                f"link {source.name}: dead_letter",
                "must be another queue than the link's `queue` or `stream`",
            )
    for webhook in settings.webhook:
        _check_webhook(webhook)
    for to_kafka in settings.to_kafka:
        _check_kafka(to_kafka.name, to_kafka.options)
        _check_template(to_kafka.name, "key", to_kafka.key, MESSAGE_FIELDS)
    for from_kafka in settings.from_kafka:
        _check_kafka(from_kafka.name, from_kafka.options)
        _check_template(from_kafka.name, "routing_key", from_kafka.routing_key, KAFKA_FIELDS)


def _check_webhook(section: WebhookSection) -> None:
    where = f"webhook {section.name}"
    url = urlsplit(section.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise _Wrong(f"{where}: url", "must be http://HOST/... or https://HOST/...")
    if url.username is not None:
        raise _Wrong(f"{where}: url", "must not contain a login: use `headers`")
    if not section.secrets and not section.secret_files:
        raise _Wrong(
            f"{where}: secrets",
            f"set a secret to sign the requests with, such as this random secret: {new_secret()}",
        )
    for text in section.secrets:
        try:
            _key(text)
        except ValueError as error:
            raise _Wrong(f"{where}: secrets", str(error)) from None
    try:
        address = ipaddress.ip_address(url.hostname)
    except ValueError:
        return
    if not section.allow_private and not is_public(address):
        raise _Wrong(
            f"{where}: url",
            f"{address} is not a public address: set allow_private = true to send requests there",
        )


def _key(text: str) -> bytes:
    """Decode a secret (SECRET_PREFIX and Base64) to the key that signs requests.

    Raises ValueError unless the key has 24 to 64 bytes.
    """
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise ValueError(
            f"must be {SECRET_PREFIX} and 24 to 64 bytes in Base64; use for example this random "
            f"secret: {new_secret()}"
        )
    return key


def _check_kafka(name: str, options: dict[str, OptionValue]) -> None:
    for option in options:
        if option in _OWN_OPTIONS:
            raise _Wrong(f"link {name}: options", f"the link sets {option} itself: remove {option}")


def _check_template(name: str, key: str, text: str, fields: frozenset[str]) -> None:
    try:
        KeyTemplate(text, fields)
    except TemplateError as error:
        raise _Wrong(f"link {name}: {key}", str(error)) from None


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _explained(problem: str) -> tuple[str, ...]:
    """Return the key of the setting that an error of msgspec names, if any, and the problem.

    `problem` is the text of the error. The problem of an unknown key names the most similar key.
    """
    text, _, path = problem.partition(" - at `$")
    key = re.sub(r"^\.", "", path.rstrip("`"))
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown is not None:
        known: tuple[Any, ...] = _SECTIONS[key.partition("[")[0]].__struct_fields__
        text = f"unknown setting '{unknown[1]}'; the nearest is '{nearest(unknown[1], known)}'"
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    if missing is not None:
        text = f"the setting '{missing[1]}' is missing"
    return (key, text) if key else (text,)
