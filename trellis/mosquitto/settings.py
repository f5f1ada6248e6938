"""General options and listeners of mosquitto.conf as settings of Trellis."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trellis.mosquitto.conf import Configuration, Line, MosquittoListener, beside
from trellis.mosquitto.options import OPTIONS
from trellis.mosquitto.report import Report

#: Tables of settings of Trellis, by section.
Tables = dict[str, dict[str, Any]]
#: Seconds of the units of persistent_client_expiration. A month has 30 days, a year 365.
_UNITS: Final = {
    "s": 1,
    "h": 3600,
    "d": 86_400,
    "w": 7 * 86_400,
    "m": 30 * 86_400,
    "y": 365 * 86_400,
}
#: The longest time in seconds that a session can be kept; longer times mean no limit.
_FOREVER: Final = 4_294_967_295
#: The value for a limit that Mosquitto writes as 0 (no limit): so high that it is never reached.
_UNLIMITED: Final = 1_000_000_000
#: Largest number of 16 bits, and smallest and largest limit of an MQTT packet in bytes.
_MAX16: Final = 65_535
_PACKET_MIN: Final = 256
_PACKET_MAX: Final = 268_435_460
#: Wildcard addresses, which a listener without a configured address uses.
_ANY: Final = ("0.0.0.0", "::")
_LOOPBACK: Final = ("127.0.0.1", "::1")
#: Path of WebSockets that most MQTT clients use with Mosquitto, which accepts every path.
_WEBSOCKET_PATH: Final = "/mqtt"


def _limit(most: int, least: int = 0, unlimited: int | None = None) -> Callable[[int], int | None]:
    """Return a function that raises or lowers a number to the range from `least` to `most`.

    For a number of 0 or below, the function returns `unlimited`.
    """

    def fit(value: int) -> int | None:
        return unlimited if value <= 0 else max(least, min(most, value))

    return fit


#: For each option of Mosquitto that is a number: section and name of the setting, and a function
#: that converts the number. The function returns None if the setting keeps its default.
_NUMBERS: Final[dict[str, tuple[str, str, Callable[[int], int | None]]]] = {
    "sys_interval": ("mqtt", "sys_interval", _limit(_UNLIMITED, 0, 0)),
    "max_inflight_messages": ("mqtt", "receive_maximum", _limit(_MAX16, 1, _MAX16)),
    "max_queued_messages": ("mqtt", "session_backlog", _limit(_UNLIMITED, 1, _UNLIMITED)),
    "max_packet_size": ("mqtt", "max_packet", _limit(_PACKET_MAX, _PACKET_MIN, _PACKET_MAX)),
    "max_keepalive": ("mqtt", "keep_alive_max", _limit(_MAX16, 0, 0)),
    "message_size_limit": ("limits", "message", _limit(_PACKET_MAX, 1)),
    "global_max_connections": ("limits", "connections", _limit(_UNLIMITED, 1, 0)),
    "global_max_clients": ("mqtt", "sessions", _limit(_UNLIMITED, 1)),
}


def general_settings(conf: Configuration, report: Report) -> Tables:
    """Return the settings of Trellis for the general options of a mosquitto.conf."""
    tables: Tables = {"mqtt": {"session_expiry": _FOREVER}}
    for name, (section, key, fit) in _NUMBERS.items():
        line = conf.general.last(name)
        number = None if line is None else _number(line, report)
        value = None if number is None else fit(number)
        if value is not None:
            tables.setdefault(section, {})[key] = value
    line = conf.general.last("persistent_client_expiration")
    if line is not None:
        match = re.fullmatch(r"(\d+)([shdwmy])", line.value)
        if match is None:
            report.not_taken(
                line.place, line.text, "the value must be a number with a unit: s, h, d, w, m or y"
            )
        else:
            tables["mqtt"]["session_expiry"] = min(_FOREVER, int(match[1]) * _UNITS[match[2]])
    if conf.general.value("persistence").lower() in ("false", "0"):
        tables["data"] = {"dir": ":memory:"}
    if conf.general.value("retain_available").lower() in ("false", "0"):
        tables["mqtt"]["retained"] = 0
    types = {line.value.lower() for line in conf.general.lines.get("log_type", [])}
    if types:
        tables["log"] = {"level": _level(types)}
    return tables


def _level(types: set[str]) -> str:
    """Return the highest log level that includes all these log types of Mosquitto.

    The levels, from the highest to the lowest, are error, warning, info and debug.
    """
    if types & {"debug", "all"}:
        return "debug"
    if types <= {"error", "none"}:
        return "error"
    return "warning" if types <= {"error", "warning", "none"} else "info"


def listener_settings(
    conf: Configuration, listeners: list[MosquittoListener], report: Report
) -> tuple[Tables, list[MosquittoListener]]:
    """Return the settings for the listeners, and the listeners that were imported.

    The settings switch off each listener of Trellis to which no imported listener corresponds.
    """
    tables: Tables = {name: {"enabled": False} for name in ("mqtt", "mqtts", "ws", "wss")}
    if conf.local_only:
        tables["mqtt"] = {"host": ",".join(_LOOPBACK), "port": 1883}
        return tables, []
    taken = [each for each in listeners if _add_listener(tables, each, conf, report)]
    mqtt = tables["mqtt"]
    if mqtt.get("enabled") is False and mqtt.pop("socket", ""):
        named = next(each.line for each in listeners if each.line is not None)
        report.not_taken(
            named.place,
            "a Unix socket without a port",
            "Trellis opens the socket in addition to the port of `mqtt`; set `mqtt.enabled`, "
            "`mqtt.port` and `mqtt.socket`",
        )
    if len({listener.value("max_topic_alias") for listener in listeners}) == 1:
        line = listeners[0].last("max_topic_alias")
        number = None if line is None else _number(line, report)
        if number is not None:
            tables["mqtt"]["topic_alias_maximum"] = max(0, min(_MAX16, number))
    counts = [
        _number(line, report) or 0
        for each in listeners
        for line in each.lines.get("max_connections", [])
    ]
    if len(counts) == len(listeners) and all(count > 0 for count in counts):
        tables["limits"] = {"connections": sum(counts)}
    return tables, taken


def _add_listener(
    tables: Tables, listener: MosquittoListener, conf: Configuration, report: Report
) -> bool:
    """Add the settings of one listener.

    Return False, with a report, if the listener is not imported.
    """
    protocol = listener.value("protocol", "mqtt")
    tls = listener.last("certfile") is not None
    section = {"mqtt": "mqtt", "websockets": "ws"}.get(protocol, "") + ("s" if tls else "")
    line = listener.line or listener.last("port") or listener.last("bind_address")
    if line is None:
        line = next(iter(listener.lines.values()))[0] if listener.lines else None
    if line is None:
        line = listener.plugins[0].line
    unsafe = next(
        (
            one
            for name in ("psk_hint", "mount_point", "use_subject_as_username", "bind_interface")
            if (one := listener.last(name)) is not None
            and one.value.lower() not in OPTIONS[name].defaults
        ),
        None,
    )
    if section not in tables or unsafe is not None:
        why = f"protocol {protocol}" if unsafe is None else unsafe.text
        report.not_taken(line.place, line.text, f"Trellis has no listener with `{why}`")
        return False
    port, hosts, socket = _address(listener, report, line)
    table = tables[section]
    if socket:
        if section != "mqtt" or table.get("socket"):
            report.not_taken(
                line.place, line.text, "Trellis has only one Unix socket, `mqtt.socket`"
            )
            return False
        table["socket"] = socket
        return True
    if not hosts:
        return False
    if table.get("enabled") is not False and table.get("port") not in (None, port):
        report.not_taken(
            line.place,
            line.text,
            f"`{section}` has port {table['port']} already, and Trellis has one port of each kind; "
            f"forward port {port} to port {table['port']}",
        )
        return False
    known = table.get("host", "").split(",") if table.get("port") is not None else []
    table.pop("enabled", None)
    table["enabled"], table["port"] = True, port
    table["host"] = ",".join(dict.fromkeys([*known, *hosts]))
    if protocol == "websockets":
        _add_websocket(table, listener, line, report)
    if tls:
        _add_tls(tables, section, listener, report)
    proxied = listener.last("enable_proxy_protocol")
    if proxied is not None:
        report.differs(
            proxied.place,
            proxied.text,
            f"name the addresses of the proxies in `{section}.proxies`; until then, connections "
            "with a PROXY header are refused",
        )
    return True


def _address(listener: MosquittoListener, report: Report, line: Line) -> tuple[int, list[str], str]:
    """Return port, IP addresses and path of the Unix socket of a listener.

    The addresses are empty if there is a path, and the path is "" if there are addresses. If the
    listener's line is invalid, both are empty, and the report says why.
    """
    words = listener.line.value.split(None, 1) if listener.line is not None else []
    port_text = words[0] if words else listener.value("port", "1883")
    bound = words[1].strip() if len(words) > 1 else listener.value("bind_address")
    if not port_text.isdecimal() or int(port_text) > _MAX16:
        report.not_taken(
            line.place, line.text, f"the port must be a number up to {_MAX16}, not '{port_text}'"
        )
        return 0, [], ""
    port = int(port_text)
    if port == 0 and bound:
        return 0, [], bound
    if not bound:
        hosts = list(_ANY)
    elif bound == "localhost":
        hosts = list(_LOOPBACK)
    else:
        try:
            hosts = [str(ipaddress.ip_address(bound))]
        except ValueError:
            report.not_taken(
                line.place,
                line.text,
                f"the address must be an IP address of this machine, not '{bound}'",
            )
            return port, [], ""
    domain = listener.value("socket_domain").lower()
    version = {"ipv4": 4, "ipv6": 6}.get(domain)
    if version is not None:
        hosts = [host for host in hosts if ipaddress.ip_address(host).version == version]
    return port, hosts, ""


def _add_websocket(
    table: dict[str, Any], listener: MosquittoListener, line: Line, report: Report
) -> None:
    """Add the path and the origins of a WebSocket listener."""
    table["path"] = _WEBSOCKET_PATH
    report.differs(
        line.place,
        line.text,
        f"clients must use the path {_WEBSOCKET_PATH} (`ws.path`); Mosquitto accepts every path",
    )
    origins = [each.value for each in listener.lines.get("websockets_origin", [])]
    if origins:
        table["origins"] = ",".join(
            dict.fromkeys([*filter(None, [table.get("origins")]), *origins])
        )
    else:
        report.differs(
            line.place,
            line.text,
            "without websockets_origin, Mosquitto accepts web pages of all origins; Trellis "
            "accepts pages of its own host until `ws.origins` names others",
        )


def _add_tls(tables: Tables, section: str, listener: MosquittoListener, report: Report) -> None:
    """Add the certificates of a listener. Report certificates that differ from an earlier
    listener's.
    """
    tls = tables.setdefault("tls", {})
    for name, key in (
        ("certfile", "certificate"),
        ("keyfile", "key"),
        ("cafile", "ca"),
        ("crlfile", "crl"),
    ):
        line = listener.last(name)
        if line is None:
            continue
        path = str(beside(line.place.file, line.value))
        if tls.setdefault(key, path) != path:
            report.not_taken(
                line.place,
                line.text,
                f"`tls.{key}` is {tls[key]} for all listeners; use one file, or `tls.names`",
            )
    version = listener.last("tls_version")
    if version is not None:
        tls["minimum"] = "1.3" if "1.3" in (tls.get("minimum"), version.value[-3:]) else "1.2"
    if listener.is_on("require_certificate"):
        tables[section]["client_certificate"] = "required"
        if not listener.last("cafile"):
            tables[section]["enabled"] = False
            line = listener.last("require_certificate")
            assert line is not None
            report.not_taken(
                line.place,
                line.text,
                "the listener has no cafile, so no certificate authority is known; set `tls.ca`, "
                f"then `{section}.enabled`",
            )
    if listener.is_on("use_identity_as_username"):
        line = listener.last("use_identity_as_username")
        assert line is not None
        tables[section]["certificate_user"] = True
        report.differs(
            line.place,
            line.text,
            "a client with a user name logs in with its password; a client without a user name "
            "logs in as the user whose name is the common name of its certificate, and this user "
            "must exist",
        )


def _number(line: Line, report: Report) -> int | None:
    """Return the value of a line as a number; None, with a report, if it is not a whole number."""
    try:
        return int(line.value)
    except ValueError:
        report.not_taken(line.place, line.text, "the value must be a whole number")
        return None


def is_loopback(listener: MosquittoListener) -> bool:
    """True if a listener accepts clients of this machine only."""
    words = listener.line.value.split(None, 1) if listener.line is not None else []
    if words and words[0] == "0" and len(words) > 1:
        return True
    bound = words[1].strip() if len(words) > 1 else listener.value("bind_address")
    return bound in ("localhost", *_LOOPBACK) or bound.startswith("127.")


def file_of(line: Line) -> Path:
    """Return the file that a line names."""
    return beside(line.place.file, line.value)
