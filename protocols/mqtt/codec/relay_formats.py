"""Who may relay octets to whom: publications travel as whole packets only between sessions of one
level.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import FRONT_END, Encoding
from broker.routing.route import RelayFormat

#: Bits of `Plan.attention`: some listener does not read the packets of a publisher of level 3 or 4,
#: of level 5, as they are.
APART_4: Final[i64] = FRONT_END
APART_5: Final[i64] = FRONT_END << 1


class MqttRelayFormat(Encoding):
    """Marks what is remembered on a message for the readers of a level."""


VERSION_4: Final = RelayFormat(APART_5)
VERSION_5: Final = RelayFormat(APART_4)
#: A session of level 5 that wants something that no publisher writes.
UNSHARED_5: Final = RelayFormat(APART_4 | APART_5)
RECODED_4: Final = MqttRelayFormat()
RECODED_5: Final = MqttRelayFormat()
