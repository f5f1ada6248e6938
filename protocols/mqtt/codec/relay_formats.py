"""Relay formats, which decide if a PUBLISH packet can be relayed unchanged to an MQTT subscriber.

PUBLISH packets of level 5 have properties, PUBLISH packets of the older levels have none.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import FRONT_END, Encoding
from broker.routing.subscriber import RelayFormat

#: Bits of `Plan.slow_path_mask`. APART_4 is set if at least one subscriber of the plan cannot get
#: packets of levels 3 and 4 unchanged, APART_5 if at least one cannot get packets of level 5
#: unchanged.
APART_4: Final[i64] = FRONT_END
APART_5: Final[i64] = FRONT_END << 1


class MqttRelayFormat(Encoding):
    """The encoding of a message's content for subscribers of levels 3 and 4, or of level 5.

    A message that cannot be relayed unchanged is encoded once in this form, and caches the result.
    """


VERSION_4: Final = RelayFormat(APART_5)
VERSION_5: Final = RelayFormat(APART_4)
#: The relay format of subscribers to which no packet can be relayed unchanged: sessions of level 5
#: with topic aliases, subscription identifiers or a limited packet size, and shared subscriptions.
UNSHARED_5: Final = RelayFormat(APART_4 | APART_5)
RECODED_4: Final = MqttRelayFormat()
RECODED_5: Final = MqttRelayFormat()
