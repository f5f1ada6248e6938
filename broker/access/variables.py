"""Variables in topic rules: `{username}`, `{vhost}` and `{client_id}`.

Rules that reserve client identifiers have the variables `{username}` and `{vhost}` only. A new rule
with another word in braces, such as `{user}`, is refused, because the word would match no client's
name. Rules that an earlier version stored may have such words, and keep them as literal text.
"""

from __future__ import annotations

import re
from typing import Final

from broker.names import nearest

TOPIC_VARIABLES: Final = ("{username}", "{vhost}", "{client_id}")
CLIENT_ID_VARIABLES: Final = ("{username}", "{vhost}")
#: Matches a word in braces that is a variable, or may be a misspelt variable. A `$` may precede it,
#: as in the placeholders of other brokers. Text with digits, such as a GUID, does not match.
_WORD: Final = re.compile(r"\$?\{[A-Za-z][A-Za-z_.-]*\}")


def has_variable(text: str) -> bool:
    """True if the text contains a word that looks like a variable, so that a topic rule cannot
    contain the text literally.
    """
    return _WORD.search(text) is not None


def check_variables(rule: str, variables: tuple[str, ...] = TOPIC_VARIABLES) -> None:
    """Raise ValueError if a rule has a word in braces that is none of the `variables`."""
    for match in _WORD.finditer(rule):
        word = match[0]
        if word not in variables:
            raise ValueError(
                f"there is no variable {word}; the nearest is {nearest(word, variables)}; the "
                f"variables are {', '.join(variables)}"
            )
