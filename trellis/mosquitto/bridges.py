"""The bridges (`connection`) of a mosquitto.conf as [[bridge]] tables of Trellis."""

from __future__ import annotations

from typing import Any, Final

from trellis.mosquitto.conf import Configuration, Line, MosquittoListener, beside
from trellis.mosquitto.report import Report
from trellis.settings.bridge import MQTT311, check_topic
from trellis.settings.values import check_name

#: For each key of [[bridge]] that is a text: the options of Mosquitto, the newest name first.
_TEXTS: Final = {
    "remote_user": ("remote_username", "username"),
    "remote_password": ("remote_password", "password"),
    "client_id": ("remote_clientid", "clientid"),
    "local_user": ("local_username",),
    "local_password": ("local_password",),
}
#: For each key that is a number: the option of Mosquitto, and the bounds of the key.
_NUMBERS: Final = {
    "remote_packet_max": ("bridge_max_packet_size", 0, 268_435_460),
    "window": ("bridge_receive_maximum", 1, 10_000),
    "session_expiry": ("bridge_session_expiry_interval", 1, 4_294_967_295),
    "keep_alive": ("keepalive_interval", 5, 65_535),
}
_FILES: Final = {"ca": "bridge_cafile", "certificate": "bridge_certfile", "key": "bridge_keyfile"}
_PLAIN_PORT: Final = 1883
#: Values of `bridge_protocol_version` for which a bridge speaks MQTT 3.1.1.
_OLD_VERSIONS: Final = ("mqttv31", "mqttv311")


def bridge_tables(conf: Configuration, report: Report) -> list[dict[str, Any]]:
    """Return the [[bridge]] tables for the bridges of a mosquitto.conf."""
    tables = []
    for bridge in conf.bridges:
        table = _bridge_table(bridge, report)
        if table is not None:
            tables.append(table)
    return tables


def _bridge_table(bridge: MosquittoListener, report: Report) -> dict[str, Any] | None:
    line = bridge.line
    assert line is not None
    address = bridge.last("address") or bridge.last("addresses")
    topics = [each for each in bridge.lines.get("topic", []) if _is_topic(each, report)]
    problem = ""
    try:
        check_name(line.value)
    except ValueError as error:
        problem = f"the name of the bridge {error}"
    if address is None:
        problem = "the bridge has no address; add a line `address HOST:PORT`"
    elif not topics:
        problem = "the bridge has no topic that Trellis can use; add a line `topic PATTERN`"
    if problem or address is None:
        report.not_taken(line.place, line.text, problem)
        return None
    files = {key: file_line for key, name in _FILES.items() if (file_line := bridge.last(name))}
    table: dict[str, Any] = {
        "name": line.value,
        "remote": _url(address, bool(files) or bridge.is_on("bridge_tls_use_os_certs")),
        "topics": [each.value for each in topics],
    }
    for key, file_line in files.items():
        table[key] = str(beside(file_line.place.file, file_line.value))
    for key, names in _TEXTS.items():
        value = next((value for name in names if (value := bridge.value(name))), "")
        if value:
            table[key] = value
    if bridge.value("bridge_protocol_version") in _OLD_VERSIONS:
        table["remote_protocol"] = MQTT311
    for key, (name, least, most) in _NUMBERS.items():
        value = bridge.value(name)
        if value.isdecimal():
            table[key] = min(most, max(least, int(value)))
    return table


def _url(address: Line, tls: bool) -> str:
    """Return the URL of the first address of a line, which is HOST or HOST:PORT.

    The scheme is mqtts if `tls` is True, else mqtt.
    """
    first = address.value.split()[0]
    host, _, port = first.rpartition(":")
    if not host or not port.isdecimal() or (":" in host and not host.endswith("]")):
        host, port = first, str(_PLAIN_PORT)  # Without a port, perhaps an IPv6 address.
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{'mqtts' if tls else 'mqtt'}://{host}:{port}"


def _is_topic(line: Line, report: Report) -> bool:
    try:
        check_topic(line.value)
    except ValueError as error:
        report.not_taken(line.place, line.text, f"Trellis cannot use this line: the topic {error}")
        return False
    return True
