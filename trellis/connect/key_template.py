"""Keys that a link makes from a message: `{routing_key}`, `plant.{word2}`, `{header.device}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: The fields of a message of the broker. `topic` is the routing key in MQTT's notation.
MESSAGE_FIELDS: Final = frozenset({"routing_key", "topic", "exchange", "message_id", "type"})
#: The fields of a record of Kafka.
KAFKA_FIELDS: Final = frozenset({"kafka_topic", "key", "partition"})
_WORD: Final = re.compile(r"word([1-9]|[1-9]\d)")
_PART: Final = re.compile(r"\{([^{}]*)\}")


class TemplateError(ValueError):
    """Raised if a template has an error. The text is for the author of the template."""


class KeyTemplate:
    """A text with fields in braces.

    The field `{wordN}` is the N-th word, from 1 on, of the routing key or of Kafka's topic;
    `{header.NAME}` is a header. Each template can use these fields besides `fields`. A field that
    the message does not have is replaced by "".
    """

    def __init__(self, text: str, fields: frozenset[str]) -> None:
        """Parse a template. Raises TemplateError."""
        self._parts: Final = _PART.split(text)
        for at, part in enumerate(self._parts):
            if at % 2 == 0:
                if "{" in part or "}" in part:
                    raise TemplateError(f"'{text}' has an unpaired brace: write fields as {{NAME}}")
            elif part not in fields and not _WORD.fullmatch(part) and not _is_header(part):
                known = ", ".join(f"{{{field}}}" for field in sorted(fields))
                raise TemplateError(
                    f"unknown field '{{{part}}}': use {known}, {{word1}} to {{word99}} or "
                    "{header.NAME}"
                )

    def fill(self, fields: Mapping[str, str], words: str, headers: Mapping[str, object]) -> str:
        """Return the text of the template with the values of a message.

        `{wordN}` is the N-th word of `words`, split at dots.
        """
        return "".join(
            self._value(part, fields, words, headers) if at % 2 else part
            for at, part in enumerate(self._parts)
        )

    @staticmethod
    def _value(
        part: str, fields: Mapping[str, str], words: str, headers: Mapping[str, object]
    ) -> str:
        if part in fields:
            return fields[part]
        if _is_header(part):
            value = headers.get(part.removeprefix("header."), "")
            return (
                value.decode(errors="replace")
                if isinstance(value, bytes | bytearray)
                else str(value)
            )
        split = words.split(".")
        number = int(part.removeprefix("word"))
        return split[number - 1] if number <= len(split) else ""


def _is_header(part: str) -> bool:
    return part.startswith("header.") and len(part) > len("header.")
