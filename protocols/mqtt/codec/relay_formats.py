"""Formats of PUBLISH packets that are relayed unchanged, between clients of one protocol level.

Packets of level 5 have properties, those of the older levels have none.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import FRONT_END, Encoding
from broker.routing.subscriber import RelayFormat

#: Bits of `Plan.slow_path_mask`: some subscriber cannot read the packets of a publisher of level 3
#: or 4 unchanged; or those of a publisher of level 5.
APART_4: Final[i64] = FRONT_END
APART_5: Final[i64] = FRONT_END << 1


class MqttRelayFormat(Encoding):
    """Marks the recoded content that is cached on a message for the subscribers of one level."""


VERSION_4: Final = RelayFormat(APART_5)
VERSION_5: Final = RelayFormat(APART_4)
#: A session of level 5 whose packets differ from those of the publisher: aliases, identifiers.
UNSHARED_5: Final = RelayFormat(APART_4 | APART_5)
RECODED_4: Final = MqttRelayFormat()
RECODED_5: Final = MqttRelayFormat()
