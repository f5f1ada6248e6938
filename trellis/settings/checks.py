"""Do the values fit each other: rules over more than one option."""

import ipaddress
import os
from collections.abc import Iterator

from matching.registry import algorithms
from trellis.settings.schema import Mqtts, Open, Secured, Settings

#: Octets of the path of a Unix socket, on every system.
SOCKET_MAX = 103

Problem = tuple[
    tuple[str, ...], str
]  # the keys that do not fit, the one to change first, and what is wrong


def problems(settings: Settings) -> Iterator[Problem]:
    """Every broken rule."""
    if settings.matcher.default not in settings.matcher.allowed:
        allowed = ", ".join(settings.matcher.allowed)
        problem = f"matcher.default ({settings.matcher.default}) must be one of matcher.allowed ({allowed})"
        yield ("matcher.default", "matcher.allowed"), problem
    for algorithm in algorithms():
        if algorithm.name in settings.matcher.allowed:
            try:
                algorithm.check()
            except ImportError as error:
                yield (
                    ("matcher.allowed", "matcher.default"),
                    f"{algorithm.name} cannot be used here: {error}; or take it out",
                )
    try:
        _ = settings.data.directory
    except RuntimeError:
        yield ("data.dir",), "needs a home directory and there is none; give a path that does not"
    yield from _credentials(settings)
    yield from _names(settings)
    yield from _tls(settings)
    yield from _ports(settings)


def _tls(settings: Settings) -> Iterator[Problem]:
    """Whoever serves TLS has a certificate, and whoever asks for one knows who signs them.

    The files are read later.
    """
    for name, entry in settings.entries.items():
        if not isinstance(entry, Secured):
            continue
        if not settings.tls.certificate:
            problem = (
                f"{name} is enabled and there is no certificate; set tls.certificate to a PEM file"
            )
            yield ("tls.certificate", f"{name}.enabled"), problem
        if entry.client_certificate != "none" and not settings.tls.ca:
            problem = (
                f'is "{entry.client_certificate}" and nobody signs them; set tls.ca to a PEM file'
            )
            yield (f"{name}.client_certificate",), problem
        if (
            isinstance(entry, Mqtts)
            and entry.certificate_user
            and entry.client_certificate == "none"
        ):
            problem = f'needs {name}.client_certificate to be "optional" or "required"'
            yield (f"{name}.certificate_user",), problem
    for name, files in settings.tls.names.items():
        if not files.get("certificate"):
            yield ("tls.names",), f'"{name}" has no certificate; give it one, a PEM file'
        for key in files:
            if key not in ("certificate", "key"):
                yield (
                    ("tls.names",),
                    f'"{name}" has an unknown key {key}; there are certificate and key',
                )
    for name, entry in settings.entries.items():
        if (
            isinstance(entry, Open)
            and len(os.fsencode(os.path.expanduser(entry.socket))) > SOCKET_MAX
        ):
            yield (
                (f"{name}.socket",),
                f"is longer than {SOCKET_MAX} octets, and the path of a Unix socket may not be; shorten it",
            )


def _credentials(settings: Settings) -> Iterator[Problem]:
    if settings.password and settings.password_file:
        yield (
            ("password", "password_file"),
            "password and password_file are both given; keep one of them",
        )
    for key, value in (("password", settings.password), ("password_file", settings.password_file)):
        if value and not settings.user:
            yield (key,), "is given without user; set user too"


def _names(settings: Settings) -> Iterator[Problem]:
    seen: set[str] = set()
    for key, name in [("user", settings.user), *(("users", user.name) for user in settings.users)]:
        if name in seen:
            yield ("users",), f'"{name}" is given twice; user names must differ'
        if name == "guest" and settings.auth.guest:
            yield (key,), "guest is built in; set auth.guest to false to define it yourself"
        seen.add(name)


def _ports(settings: Settings) -> Iterator[Problem]:
    """Two listeners may not ask for one address; `0.0.0.0` takes all of IPv4 and `::` all of IPv6."""
    taken: list[tuple[str, str, int]] = []
    for section, listener in settings.listeners.items():
        for address in listener.addresses:
            for other, theirs, port in taken:
                if port == listener.port and _overlap(address, theirs):
                    problem = f"{other}.port and {section}.port are both {port}; give each its own, or 0 for a free one"
                    yield (
                        tuple(
                            f"{name}.{key}" for key in ("port", "host") for name in (section, other)
                        ),
                        problem,
                    )
        taken += [
            (section, address, listener.port) for address in listener.addresses if listener.port
        ]


def _overlap(one: str, other: str) -> bool:
    a, b = ipaddress.ip_address(one), ipaddress.ip_address(other)
    return a.version == b.version and (a == b or a.is_unspecified or b.is_unspecified)
