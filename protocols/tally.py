"""The counters of a front end: plain integers, which the metrics endpoint reads."""

from __future__ import annotations

from mypy_extensions import i64


class FrontCounters:
    """The counters that all connections of a front end share.

    The counters outlive the connections, so that a total never decreases.
    """

    def __init__(self) -> None:
        #: The number of publications on channels in confirm mode, and the number of these that were
        #: confirmed. One basic.ack can confirm several publications.
        self.received_confirm: i64 = 0
        self.confirmed: i64 = 0
        #: Deliveries to consumers that acknowledge automatically, and manually.
        self.delivered_auto: i64 = 0
        self.delivered_manual: i64 = 0
        #: Messages fetched by basic.get with automatic and manual acknowledgement, and replies
        #: without a message.
        self.get_auto: i64 = 0
        self.get_manual: i64 = 0
        self.get_empty: i64 = 0
        #: Deliveries and fetched messages that had been delivered before.
        self.redelivered: i64 = 0
        self.acknowledged: i64 = 0
        #: Mandatory messages returned to their publisher.
        self.returned: i64 = 0
        #: Channels closed because a delivery was not acknowledged in time.
        self.acknowledgements_expired: i64 = 0
        self.channels_opened: i64 = 0
        self.channels_closed: i64 = 0
