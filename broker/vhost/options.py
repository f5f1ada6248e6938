"""The options of a virtual host that operators set: description, tags, default queue type, limits,
and protection from deletion.

The options are stored in the definition of the virtual host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from broker.errors import NotAllowed, PreconditionFailed
from broker.names import is_text

#: Names of the limits of a virtual host, and of the limits of a user.
MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
MAX_CHANNELS: Final = "max-channels"
VHOST_LIMITS: Final = (MAX_CONNECTIONS, MAX_QUEUES)
USER_LIMITS: Final = (MAX_CONNECTIONS, MAX_CHANNELS)
#: The options that a virtual host has besides its limits.
OPTIONS: Final = ("description", "tags", "default_queue_type", "protected_from_deletion")
#: The queue types that a virtual host can have as its default.
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
#: Largest size of a description in bytes, largest number of tags, and largest size of one tag in
#: bytes.
DESCRIPTION_MAX: Final = 4_096
TAGS_MAX: Final = 64
TAG_BYTES_MAX: Final = 255
#: The largest value of a limit.
LIMIT_MAX: Final = 1 << 31


class VirtualHostOptions:
    """The options of one virtual host. An object never changes; a change replaces it.

    An empty `default_queue_type` means classic.
    """

    def __init__(
        self,
        description: str = "",
        tags: Sequence[str] = (),
        default_queue_type: str = "",
        limits: Mapping[str, int] | None = None,
        protected: bool = False,
    ) -> None:
        self.description = description
        self.tags = list(tags)
        self.default_queue_type = default_queue_type
        self.limits = dict(limits or {})
        #: True if the virtual host cannot be deleted until an operator ends its protection.
        self.protected = protected

    @property
    def row(self) -> dict[str, object]:
        """The options as a mapping for the store; empty if no option is set."""
        row: dict[str, object] = {}
        if self.description:
            row["description"] = self.description
        if self.tags:
            row["tags"] = list(self.tags)
        if self.default_queue_type:
            row["default_queue_type"] = self.default_queue_type
        if self.limits:
            row["limits"] = dict(self.limits)
        if self.protected:
            row["protected_from_deletion"] = True
        return row

    def with_limits(self, limits: Mapping[str, int]) -> VirtualHostOptions:
        """Return a copy of these options with `limits` instead of the present limits."""
        return VirtualHostOptions(
            self.description, self.tags, self.default_queue_type, limits, self.protected
        )

    def with_protection(self, protected: bool) -> VirtualHostOptions:
        """Return a copy of these options with the protection from deletion on or off."""
        return VirtualHostOptions(
            self.description, self.tags, self.default_queue_type, self.limits, protected
        )


def options_of(vhost: str, row: Mapping[str, object]) -> VirtualHostOptions:
    """Return the options in a stored or imported row. Raises PreconditionFailed for a wrong value.

    RabbitMQ writes description, tags and default queue type next to the name, or in `metadata`.
    """
    metadata = row.get("metadata")
    known = {**metadata, **row} if isinstance(metadata, dict) else row
    description = known.get("description", "")
    if not isinstance(description, str) or not is_text(description):
        raise PreconditionFailed(f"vhost '{vhost}': 'description' must be a text")
    if len(description.encode()) > DESCRIPTION_MAX:
        raise PreconditionFailed(
            f"vhost '{vhost}': the description has {len(description.encode())} bytes, and the "
            f"limit is {DESCRIPTION_MAX} bytes"
        )
    queue_type = known.get("default_queue_type") or ""
    # RabbitMQ 3.11 and 3.12 write "undefined" if no default type is set.
    if queue_type == "undefined":
        queue_type = ""
    if not isinstance(queue_type, str) or queue_type and queue_type not in QUEUE_TYPES:
        raise PreconditionFailed(
            f"vhost '{vhost}': 'default_queue_type' is {queue_type!r}, not one of "
            + ", ".join(QUEUE_TYPES)
        )
    protected = known.get("protected_from_deletion", False)
    if not isinstance(protected, bool):
        raise PreconditionFailed(
            f"vhost '{vhost}': 'protected_from_deletion' is {protected!r}; write true or false"
        )
    limits = known.get("limits")
    return VirtualHostOptions(
        description,
        _tags(vhost, known.get("tags")),
        queue_type,
        limits_of(f"vhost '{vhost}'", VHOST_LIMITS, limits) if limits else {},
        protected,
    )


def _tags(vhost: str, given: object) -> list[str]:
    if isinstance(given, str):
        given = [tag.strip() for tag in given.split(",") if tag.strip()]
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > TAGS_MAX:
        raise PreconditionFailed(
            f"vhost '{vhost}': 'tags' must be a list of up to {TAGS_MAX} texts"
        )
    tags: list[str] = []
    for tag in given:
        if not isinstance(tag, str) or not is_text(tag) or len(tag.encode()) > TAG_BYTES_MAX:
            raise PreconditionFailed(
                f"vhost '{vhost}': each tag must be a text of up to {TAG_BYTES_MAX} bytes"
            )
        tags.append(tag)
    return tags


def limits_of(thing: str, known: Sequence[str], given: object) -> dict[str, int]:
    """Return the limits in `given`. A limit below 0 means no limit, and is left out.

    Raises PreconditionFailed for an unknown limit, or a limit that is not a number. `thing` names
    the object in the error.
    """
    if given == []:  # RabbitMQ writes an empty list for empty limits.
        return {}
    if not isinstance(given, dict):
        raise PreconditionFailed(f"{thing}: the limits must be an object, not {given!r}")
    limits: dict[str, int] = {}
    for name, value in given.items():
        if name not in known:
            raise PreconditionFailed(
                f"{thing}: unknown limit '{name}'; known limits are {', '.join(known)}"
            )
        if not isinstance(value, int) or isinstance(value, bool) or value > LIMIT_MAX:
            raise PreconditionFailed(
                f"{thing}: the limit '{name}' must be a whole number up to {LIMIT_MAX}, not "
                f"{value!r}"
            )
        if value >= 0:
            limits[str(name)] = value
    return limits


def check_queue_count(
    name: str, vhost: str, count: int, general: int, limits: Mapping[str, int]
) -> None:
    """Raise an error if a virtual host has reached a limit of queues.

    `name` is the name of the new queue, and `count` the number of queues. Raises NotAllowed for
    `general`, the limit of all virtual hosts (0: no limit), and PreconditionFailed for the limit of
    this virtual host in `limits`.
    """
    if 0 < general <= count:
        raise NotAllowed(
            f"cannot declare queue '{name}': vhost '{vhost}' has reached the limit of {general} "
            "queues: raise the setting limits.queues"
        )
    limit = limits.get(MAX_QUEUES)
    if limit is not None and count >= limit:
        raise PreconditionFailed(
            f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
        )
