"""Rules for one text that is the value of a setting.

Each `check_` function raises ValueError with a message about the valid values, as in `must be three
octal digits, such as "0660"`. The caller adds the key before the message.
"""

import ipaddress
import re

from broker.access.rules import check_rule as check_user_rule
from broker.access.rules import check_rule_variables
from broker.names import NAME_BYTES_MAX, fault_of
from broker.patterns import without_posix
from matching.grammar import MQTT, InvalidPattern
from trellis.settings.scram_hash import SCRAM_PREFIX, parse_scram


def split_addresses(host: str) -> list[str]:
    """Split `"127.0.0.1, ::1"` into `["127.0.0.1", "::1"]`, without repetitions.

    Raises ValueError if a part is not an IP address.
    """
    return list(dict.fromkeys(str(ipaddress.ip_address(part.strip())) for part in host.split(",")))


def check_addresses(host: str) -> None:
    """Raise ValueError unless the text is a list of IP addresses separated by commas."""
    try:
        split_addresses(host)
    except ValueError:
        raise ValueError(
            'must be IP addresses separated by commas, such as "127.0.0.1,::1" or "0.0.0.0"'
        ) from None


def split_networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Split `"10.0.0.0/8, ::1"` into networks; an address is a network of one address.

    Raises ValueError if a part is neither an address nor a network.
    """
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def check_networks(text: str) -> None:
    """Raise ValueError unless the text is IP addresses and networks, separated by commas."""
    try:
        split_networks(text)
    except ValueError:
        raise ValueError(
            'must be IP addresses or networks separated by commas, such as "10.0.0.5,10.1.0.0/16"'
        ) from None


def check_hosts(text: str) -> None:
    """Raise ValueError unless the text is a list of host names separated by commas."""
    for name in split_origins(text):
        if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", name):
            raise ValueError(
                'must be host names without a port, separated by commas, such as "broker,'
                'broker.local"'
            )


def split_origins(text: str) -> list[str]:
    """Split web origins separated by commas, and convert them to lowercase."""
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def check_origins(text: str) -> None:
    """Raise ValueError unless the text is a list of web origins separated by commas."""
    for origin in split_origins(text):
        if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise ValueError(
                'must be web origins separated by commas, such as "https://app.example.org,'
                'http://10.0.0.5:8080", or "*"'
            )


def check_path(path: str) -> None:
    """Raise ValueError unless the text is the path of a URL, without query and fragment."""
    if not re.fullmatch(r"/[!-~]*", path) or "?" in path or "#" in path:
        raise ValueError('must be a path, such as "/ws"')


def check_mode(text: str) -> None:
    """Raise ValueError unless the text is file permissions in octal digits, such as 0660."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError('must be three octal digits, such as "0660"')


def check_name(name: str) -> None:
    """Raise ValueError unless the name of a broker has 1 to 255 letters, digits or `._@-`."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,255}", name):
        raise ValueError("must be 1 to 255 letters, digits and . _ @ -")


def check_object_name(name: str) -> None:
    """Raise ValueError unless the text is a valid name of a user or a virtual host."""
    fault = fault_of(name)
    if fault:
        raise ValueError(f"must be 1 to {NAME_BYTES_MAX} bytes of UTF-8 without NUL ({fault})")


def check_optional_name(name: str) -> None:
    """Raise ValueError unless the text is a valid name, or empty."""
    if name:
        check_object_name(name)


def check_regex(pattern: str) -> None:
    """Raise ValueError unless the text is a regular expression."""
    try:
        re.compile(without_posix(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"must be a valid regular expression ({error})") from None


def check_hash(text: str) -> None:
    """Raise ValueError unless the text is a password hash of argon2 or for SCRAM."""
    try:
        if text.startswith(SCRAM_PREFIX):
            parse_scram(text)
        else:
            # Imported here, because a command that reads the settings seldom checks a hash.
            from argon2 import extract_parameters

            extract_parameters(text)
    except ValueError:
        raise ValueError("must be the output of `trellis hash-password`") from None


def check_tag(tag: str) -> None:
    """Raise ValueError unless the tag is management, policymaker or monitoring."""
    if tag not in ("management", "policymaker", "monitoring"):
        raise ValueError(
            "must be management, policymaker or monitoring (for an administrator, set "
            "`administrator = true` instead)"
        )


def check_journal(text: str) -> None:
    """Raise ValueError unless the text is VHOST=NAME: a virtual host and a stream in it."""
    vhost, equals, name = text.rpartition("=")
    if not equals or fault_of(vhost) or fault_of(name):
        raise ValueError('must be VHOST=NAME, such as "/=journal"')


def check_topic_filter(text: str) -> None:
    """Raise ValueError unless the text is an MQTT topic filter, such as "plant/+/#"."""
    try:
        MQTT.check(text)
    except InvalidPattern as error:
        raise ValueError(f"must be an MQTT topic filter ({error.rule})") from None


def check_rule(text: str, expanded: str | None = None) -> None:
    """Raise ValueError unless the text is an access rule for topics (docs/security.md).

    Rules of tokens may have placeholders. For such a rule, `expanded` is the text with words in
    place of the placeholders; None for other rules.
    """
    try:
        check_user_rule(text, "user", "vhost")
    except ValueError as error:
        raise ValueError(f"must be a valid rule ({error})") from None
    try:
        check_rule_variables(text if expanded is None else expanded)
    except ValueError as error:
        raise ValueError(f"must be a valid rule ('{text}': {error})") from None
