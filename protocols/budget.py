"""The limit of a connection's work in one turn of the event loop, and the unit of this work."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Limit of the work that one call of `consume` may cause. One unit is about the work for one
#: publication, or for one copy of a message. Further input waits for the next turn of the event
#: loop.
BUDGET: Final[i64] = 20_000
#: Cost of a packet that is not on a hot path, in units of BUDGET.
COLD: Final[i64] = 10
#: Returned in place of a cost if the search for a publication's destinations pauses. The
#: publication has had no effect, and is handled again in the next turn of the event loop; later
#: input waits.
SEARCHING: Final[i64] = -1
