"""Rules over several settings, such as two listeners with one port."""

import ipaddress
import os
from collections.abc import Iterator

from broker.access.rules import RULES_MAX
from matching.registry import ALGORITHMS, NAMES, algorithms
from trellis.settings.bridge import TOPICS_MAX
from trellis.settings.cluster import cluster_problems
from trellis.settings.listeners import Mqtts, PlainListener, TlsListener
from trellis.settings.schema import Settings
from trellis.settings.tokens import url_fault

#: Longest path of a Unix socket in bytes, on every system.
SOCKET_PATH_MAX = 103

#: A broken rule: the conflicting keys, and a text with the problem. The error names the first of
#: these keys that has been set, or the first key if all have their defaults.
Problem = tuple[tuple[str, ...], str]


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each rule that the settings break."""
    yield from _matchers(settings)
    try:
        _ = settings.data.directory
    except RuntimeError:
        problem = "needs a home directory, and none is known; set it to an absolute path"
        yield ("data.dir",), problem
    yield from _credentials(settings)
    yield from _tokens(settings)
    yield from _user_names(settings)
    yield from _rules(settings)
    yield from _tls(settings)
    yield from _sockets(settings)
    yield from _ports(settings)
    yield from cluster_problems(settings.cluster)
    yield from _bridges(settings)


def _bridges(settings: Settings) -> Iterator[Problem]:
    """Yield the problems of bridges, such as two bridges with one name.

    A bridge also connects to this broker: it needs the plain MQTT listener, without PROXY headers.
    """
    names = [bridge.name for bridge in settings.bridge]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield ("bridge",), f'the name "{name}" is given twice; names of bridges must differ'
    for bridge in settings.bridge:
        if len(bridge.topics) > TOPICS_MAX:
            problem = f'bridge "{bridge.name}" has {len(bridge.topics)} topics; the limit is '
            yield ("bridge",), f"{problem}{TOPICS_MAX}; remove some"
        if bridge.key and not bridge.certificate:
            problem = f'bridge "{bridge.name}" has a key, but no certificate'
            yield ("bridge",), f"{problem}; set its certificate to a PEM file"
    if names and not settings.mqtt.enabled:
        problem = "bridges connect to this broker over plain MQTT, but mqtt.enabled is false"
        remedy = 'set mqtt.enabled to true; mqtt.host = "127.0.0.1" keeps other machines out'
        yield ("bridge", "mqtt.enabled"), f"{problem}; {remedy}"
    own = ipaddress.ip_address(settings.mqtt.addresses[0])
    if own.is_unspecified:
        own = ipaddress.ip_address("127.0.0.1" if own.version == 4 else "::1")
    if names and any(own in network for network in settings.mqtt.networks):
        problem = (
            f"connections from {own} must begin with a PROXY header, which a bridge does not send"
        )
        remedy = "set mqtt.proxies to another address of the proxy, such as 127.0.0.2"
        yield ("mqtt.proxies", "bridge"), f"{problem}; {remedy}"


def _matchers(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each allowed algorithm that is not installed, and for a default that is
    not allowed.
    """
    default, allowed = settings.matcher.default, settings.matcher.allowed
    if default not in allowed:
        words = ", ".join(allowed)
        problem = f"the default algorithm {default} is missing from matcher.allowed ({words})"
        keys = ("matcher.default", "matcher.allowed")
        yield keys, f"{problem}; change matcher.default or matcher.allowed"
    # Most settings allow built-in algorithms only, and need not search the installed packages.
    for algorithm in ALGORITHMS if set(allowed) <= set(NAMES) else algorithms():
        if algorithm.name in allowed:
            try:
                algorithm.check()
            except ImportError as error:
                keys = ("matcher.allowed", "matcher.default")
                problem = f"the algorithm {algorithm.name} cannot be loaded: {error}"
                yield keys, f"{problem}; or remove the algorithm from the list"


def _tls(settings: Settings) -> Iterator[Problem]:
    """Yield the problems of TLS listeners, such as a missing certificate or authority.

    The contents of the files are not checked here (trellis/server/certificates.py reads them).
    """
    for name, listener in settings.protocol_listeners.items():
        if not isinstance(listener, TlsListener):
            continue
        asks = listener.client_certificate
        if not settings.tls.certificate:
            keys = ("tls.certificate", f"{name}.enabled")
            yield keys, f"{name} needs a certificate; set tls.certificate to a PEM file"
        if asks != "none" and not settings.tls.ca:
            problem = f'is "{asks}", but no authority is known; set tls.ca to a PEM file'
            yield (f"{name}.client_certificate",), problem
        if isinstance(listener, Mqtts) and listener.certificate_user and asks == "none":
            problem = f'needs {name}.client_certificate to be "optional" or "required"'
            yield (f"{name}.certificate_user",), problem
    if settings.tls.crl and not settings.tls.ca:
        yield (
            ("tls.crl",),
            "needs tls.ca; set tls.ca to the file of the authorities that sign the lists",
        )
    http = settings.http
    if http.enabled and http.tls and not settings.tls.certificate:
        keys = ("tls.certificate", "http.tls")
        yield keys, "HTTPS needs a certificate; set tls.certificate to a PEM file"
    if http.client_certificate != "none" and not (http.tls and settings.tls.ca):
        problem = f'is "{http.client_certificate}"; set http.tls to true, and tls.ca to a PEM file'
        yield ("http.client_certificate",), problem
    for name, files in settings.tls.names.items():
        if not files.get("certificate"):
            yield ("tls.names",), f'"{name}" has no certificate; set its certificate to a PEM file'
        for key in files:
            if key not in ("certificate", "key"):
                problem = f'"{name}" has the unknown key {key}; known keys are certificate, key'
                yield ("tls.names",), problem


def _sockets(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each Unix socket whose path is longer than the system permits."""
    for name, listener in settings.protocol_listeners.items():
        if isinstance(listener, PlainListener):
            size = len(os.fsencode(os.path.expanduser(listener.socket)))
            if size > SOCKET_PATH_MAX:
                problem = f"is too long: {size} bytes; the path of a Unix socket may have at most"
                yield (f"{name}.socket",), f"{problem} {SOCKET_PATH_MAX} bytes"


def _credentials(settings: Settings) -> Iterator[Problem]:
    """Yield a problem if `password` and `password_file` are both set, or are set without `user`."""
    if settings.password and settings.password_file:
        yield ("password", "password_file"), "a password and a password file are given; remove one"
    for key, value in (("password", settings.password), ("password_file", settings.password_file)):
        if value and not settings.user:
            yield (key,), "is given without user; set user too"


def _tokens(settings: Settings) -> Iterator[Problem]:
    """Yield the problems of the keys that verify tokens.

    The problems are: several sources of keys, an unsafe URL of a provider, and an algorithm with a
    shared secret together with the public keys of a provider.
    """
    jwt = settings.jwt
    given = [key for key in ("keys", "jwks_url", "discovery") if getattr(jwt, key)]
    if len(given) > 1:
        keys = tuple(f"jwt.{key}" for key in given)
        yield keys, f"{' and '.join(keys)} are given; name one source of keys"
    if jwt.discovery:
        fault = url_fault(jwt.issuer)
        if fault:
            problem = f"for the discovery of keys, the issuer {fault}"
            yield ("jwt.issuer", "jwt.discovery"), problem
    shared = [name for name in jwt.algorithms if name.startswith("HS")]
    if jwt.fetches and shared:
        problem = f"{shared[0]} needs a shared secret, and the keys of a provider are public"
        yield ("jwt.algorithms",), f"{problem}; remove {shared[0]}, or use jwt.keys"


def _user_names(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each user name that occurs twice, or is `guest`, the built-in user."""
    seen: set[str] = set()
    for key, name in [("user", settings.user), *(("users", user.name) for user in settings.users)]:
        if name in seen:
            yield ("users",), f'the name "{name}" is given twice; user names must differ'
        if name == "guest" and settings.auth.guest:
            yield (
                (key, "auth.guest"),
                "the user guest is built in; set auth.guest to false to define guest yourself",
            )
        seen.add(name)


def _rules(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each list of topic rules that is too long."""
    lists = [("mqtt.anonymous_rules", "", settings.mqtt.anonymous_rules)]
    lists += [("users", f'user "{user.name}" ', user.rules) for user in settings.users]
    for key, owner, rules in lists:
        if len(rules) > RULES_MAX:
            yield (key,), f"{owner}has {len(rules)} rules; the limit is {RULES_MAX}; remove some"


def _ports(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for two listeners that share an address and a port.

    `0.0.0.0` means all addresses of IPv4, `::` all addresses of IPv6.
    """
    taken: list[tuple[str, str, int]] = []
    for section, listener in settings.listeners.items():
        for address in listener.addresses:
            for other, other_address, port in taken:
                if port == listener.port and _overlap(address, other_address):
                    keys = tuple(
                        f"{name}.{key}" for key in ("port", "host") for name in (section, other)
                    )
                    problem = f"{other} and {section} both have port {port} on {address}"
                    yield keys, f"{problem}; give each listener its own port, or 0 for a free port"
        taken += [
            (section, address, listener.port) for address in listener.addresses if listener.port
        ]


def _overlap(one: str, other: str) -> bool:
    """True if two IP addresses are equal, or one is the unspecified address of the same version."""
    a, b = ipaddress.ip_address(one), ipaddress.ip_address(other)
    return a.version == b.version and (a == b or a.is_unspecified or b.is_unspecified)
