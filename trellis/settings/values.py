"""Is this text a valid value? Each check raises ValueError with what is expected instead."""

import ipaddress
import re

from argon2 import extract_parameters

from broker.access.rules import Rule


def split_addresses(host: str) -> list[str]:
    """`"127.0.0.1, ::1"` -> `["127.0.0.1", "::1"]`, each once; ValueError if a part is no IP
    address.
    """
    return list(dict.fromkeys(str(ipaddress.ip_address(part.strip())) for part in host.split(",")))


def check_addresses(host: str) -> None:
    try:
        split_addresses(host)
    except ValueError:
        raise ValueError(
            'IP addresses separated by commas, such as "127.0.0.1,::1" or "0.0.0.0"'
        ) from None


def split_networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """`"10.0.0.0/8, ::1"` -> networks, an address being one of its own; ValueError if a part is
    neither.
    """
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def check_networks(text: str) -> None:
    try:
        split_networks(text)
    except ValueError:
        raise ValueError(
            'IP addresses or networks separated by commas, such as "10.0.0.5,10.1.0.0/16"'
        ) from None


def split_origins(text: str) -> list[str]:
    """Origins separated by commas, in small letters."""
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def check_origins(text: str) -> None:
    for origin in split_origins(text):
        if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise ValueError(
                'Origins separated by commas, such as "https://app.example.org,http://10.0.0.5:8080", or "*"'
            )


def check_path(path: str) -> None:
    if not re.fullmatch(r"/[!-~]*", path) or "?" in path or "#" in path:
        raise ValueError('a path, such as "/ws"')


def check_mode(text: str) -> None:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError('three octal digits, such as "0660"')


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,255}", name):
        raise ValueError("1 to 255 letters, digits and . _ @ -")


def check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"a regular expression ({error})") from None


def check_hash(text: str) -> None:
    try:
        extract_parameters(text)
    except ValueError:
        raise ValueError("the output of `trellis hash-password`") from None


def check_tag(tag: str) -> None:
    if tag not in ("management", "policymaker", "monitoring"):
        raise ValueError("must be management, policymaker or monitoring (or set administrator)")


def check_journal(text: str) -> None:
    """VHOST=NAME."""
    vhost, equals, name = text.rpartition("=")
    if not vhost or not equals or not 0 < len(name.encode()) <= 255:
        raise ValueError('VHOST=NAME, such as "/=journal"')


def check_rule(text: str) -> None:
    try:
        Rule(text, "user", "vhost", "client")
    except ValueError as error:
        raise ValueError(f"a rule ({error})") from None
