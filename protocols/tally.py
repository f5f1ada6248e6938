"""What one front end counts: plain ints, read when somebody scrapes."""

from __future__ import annotations

from mypy_extensions import i64


class FrontCounters:
    """Shared by all connections of a front end, so totals never fall when one of them ends."""

    def __init__(self) -> None:
        #: Publications by publishers who want confirms, and confirms given.
        self.received_confirm: i64 = 0
        self.confirmed: i64 = 0
        #: Deliveries to consumers that need not answer, and to those that must.
        self.delivered_auto: i64 = 0
        self.delivered_manual: i64 = 0
        self.get_auto: i64 = 0
        self.get_manual: i64 = 0
        self.get_empty: i64 = 0
        self.redelivered: i64 = 0
        self.acknowledged: i64 = 0
        self.returned: i64 = 0
        self.channels_opened: i64 = 0
        self.channels_closed: i64 = 0
