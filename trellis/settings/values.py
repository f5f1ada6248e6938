"""Is this text a valid value? Each check raises ValueError with what is expected instead."""

import ipaddress
import re

from argon2 import extract_parameters

from broker.rules import Rule


def split_addresses(host: str) -> list[str]:
    """`"127.0.0.1, ::1"` -> `["127.0.0.1", "::1"]`, each once; ValueError if a part is no IP address."""
    return list(dict.fromkeys(str(ipaddress.ip_address(part.strip())) for part in host.split(",")))


def check_addresses(host: str) -> None:
    try:
        split_addresses(host)
    except ValueError:
        raise ValueError('IP addresses separated by commas, such as "127.0.0.1,::1" or "0.0.0.0"') from None


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


def check_journal(text: str) -> None:
    """VHOST=NAME."""
    vhost, equals, name = text.rpartition("=")
    if not vhost or not equals or not 0 < len(name.encode()) <= 255:
        raise ValueError('VHOST=NAME, such as "/=journal"')


def check_rule(text: str) -> None:
    try:
        Rule(text, "user", "vhost")
    except ValueError as error:
        raise ValueError(f"a rule ({error})") from None
