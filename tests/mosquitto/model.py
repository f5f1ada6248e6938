"""A model of Mosquitto's access decisions about topics.

The model shares no code with the import of Mosquitto's configuration. Each function follows its
counterpart in Mosquitto: `acl__check` for the ACL file, and `acl_check` for the dynamic security
plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

READ, WRITE = "read", "write"


def matches(topic_filter: str, topic: str) -> bool:
    """True if a filter matches a topic, by the definition of MQTT."""
    if topic.startswith("$") != topic_filter.startswith("$"):
        return False
    pattern = ""
    for at, word in enumerate(topic_filter.split("/")):
        slash = "/" if at else ""
        if word == "#":
            pattern += f"({slash}.*)?" if at else ".*"
        else:
            pattern += slash + ("[^/]*" if word == "+" else re.escape(word))
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


def covers(acl: str, topic_filter: str) -> bool:
    """True if the filter `acl` matches each topic that `topic_filter` matches."""
    if acl.startswith("$") != topic_filter.startswith("$"):
        return False
    own, other = acl.split("/"), topic_filter.split("/")
    for at, word in enumerate(own):
        if word == "#":
            return True
        if at >= len(other) or other[at] == "#" or (word not in ("+", other[at])):
            return False
    return len(own) == len(other)


def with_names(topic: str, user: str | None, client_id: str) -> str:
    return topic.replace("%c", client_id).replace("%u", user or "")


def is_kept_from_clients(topic: str) -> bool:
    """True if Mosquitto lets no client publish to the topic.

    That is so for all topics that begin with $SYS, except the topics for the state of a bridge.
    """
    if not topic.startswith("$SYS"):
        return False
    return re.fullmatch(r"\$SYS/broker/connection/[^/]*/state", topic) is None


def acl_file_decides(
    lines: list[tuple[str, str, str]], user: str | None, client_id: str, topic: str, access: str
) -> bool:
    """Return Mosquitto's verdict for an ACL file: True if the access is allowed.

    Each line is a tuple: ("user", "", name), or ("topic", access type, filter), or ("pattern",
    access type, filter). `access` is "read" or "write".
    """
    if access == WRITE and is_kept_from_clients(topic):
        return False
    owner: str | None = None
    own: list[tuple[str, str]] = []
    patterns: list[tuple[str, str]] = []
    for kind, right, topic_filter in lines:
        if kind == "user":
            owner = topic_filter
        elif kind == "topic" and owner == user:
            own.append((right, topic_filter))
        elif kind == "pattern":
            patterns.append((right, topic_filter))
    for entries, substituted in ((own, False), (patterns, True)):
        if substituted and entries and re.search("[+#]", (user or "") + client_id):
            return False
        for right, topic_filter in sorted(entries, key=lambda entry: entry[0] != "deny"):
            if substituted and "%u" in topic_filter and user is None:
                continue
            name = with_names(topic_filter, user, client_id) if substituted else topic_filter
            if matches(name, topic):
                if right == "deny":
                    return False
                if right in (access, "readwrite"):
                    return True
    return False


def dynamic_lists(document: dict[str, Any], user: str | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the access entries of each role of a user and of its groups, by falling priority."""
    roles = {role["rolename"]: role["acls"] for role in document["roles"]}
    groups = {group["groupname"]: group for group in document["groups"]}

    def ordered(members: list[dict[str, Any]], name: str) -> list[str]:
        sorted_members = sorted(members, key=lambda one: (-one.get("priority", -1), one[name]))
        return [one[name] for one in sorted_members]

    owners: list[dict[str, Any]] = []
    if user is None:
        owners = [groups[document["anonymousGroup"]]] if document.get("anonymousGroup") else []
    else:
        client = next(one for one in document["clients"] if one["username"] == user)
        memberships = [
            {"groupname": group["groupname"], "priority": one.get("priority", -1)}
            for group in document["groups"]
            for one in group["clients"]
            if one["username"] == user
        ]
        owners = [client, *(groups[name] for name in ordered(memberships, "groupname"))]
    for owner in owners:
        for role in ordered(owner["roles"], "rolename"):
            yield sorted(roles[role], key=lambda acl: -acl.get("priority", 0))


def dynamic_decides(
    document: dict[str, Any], user: str | None, client_id: str, topic: str, kind: str
) -> bool:
    """Return the verdict of Mosquitto's dynamic security plugin: True if the access is allowed.

    `kind` is send, receive or subscribe. For subscribe, `topic` is the filter of the subscription.
    """
    if kind == "send" and is_kept_from_clients(topic):
        return False
    for acls in dynamic_lists(document, user):
        if kind == "subscribe":
            for acl in acls:
                if acl["acltype"] == "subscribeLiteral" and acl["topic"] == topic:
                    return bool(acl["allow"])
        wanted = {
            "send": "publishClientSend",
            "receive": "publishClientReceive",
            "subscribe": "subscribePattern",
        }[kind]
        for acl in acls:
            if acl["acltype"] == wanted and not (user is None and "%u" in acl["topic"]):
                name = with_names(acl["topic"], user, client_id)
                if (covers if kind == "subscribe" else matches)(name, topic):
                    return bool(acl["allow"])
    defaults = document["defaultACLAccess"]
    key = {
        "send": "publishClientSend",
        "receive": "publishClientReceive",
        "subscribe": "subscribe",
    }[kind]
    return bool(defaults[key]) and not topic.startswith("$CONTROL")
