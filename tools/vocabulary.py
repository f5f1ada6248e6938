"""The words that Trellis does not use, each with the words to write instead.

tools/check_language.py finds these words. Its list EXEMPT names the files in which the words are
allowed.
"""

from __future__ import annotations

from typing import Final

#: Regular expressions for first words of a docstring that leave its subject unnamed.
OPENINGS: Final = (r"(What|Who|Whoever|Whose|Whether|How|The same|And)\b", r"\.\.\.", "…")

#: Words and phrases that are not allowed anywhere, not even as words of an identifier. A match may
#: contain line ends or underscores between its words. A letter before `?` is optional.
BANNED: Final = {
    "nobody": "name the client, consumer or user that is missing, as in 'no consumer'",
    "somebody": "name the subject: the client, publisher, consumer, user",
    "whoever": "name the subject, as in 'the client that'",
    "how manieth": "sequence number",
    "lets? go of": "remove, release, close or cancel",
    "letting go of": "removing, releasing, closing or cancelling",
    "octets?": "bytes, or cite the specification that is quoted (AMQP 0-9-1, MQTT-x.y.z-n, RFC n)",
    "in small letters": "lowercase",
    "latecomers?": "retained delivery, or new subscription",
    "heirs?": "replacement",
    "testaments?": "stored will",
    "lobby": "login queue",
    "almighty": "superuser",
}

#: The banned word that is allowed near a citation of a specification.
QUOTABLE: Final = "octets?"

#: Old identifiers and the present ones. The check compares whole identifiers, without leading
#: underscores, in code and between backticks. Words with an ordinary meaning are not listed.
OLD_NAMES: Final = {
    "Bounds": "BrokerLimits, or OffsetRange in the pipeline",
    "Farewell": "ReasonPacket",
    "Gate": "PublishContext",
    "Holdings": "VirtualHost, Declarations or Bindings",
    "Ingress": "IngressCounters",
    "Kept": "MessageStored",
    "LateWill": "DelayedWill",
    "LeftWill": "WillMessage",
    "Many": "EntryGroup",
    "Pen": "PublishWriter",
    "Preparer": "Prewarming",
    "Settled": "MessageSettled",
    "Spelling": "PublishProperties",
    "Stepped": "PubrecReceived",
    "Terms": "QueueArguments",
    "Warmth": "Prewarming",
    "Wish": "SubscribeRequest",
    "abroad": "foreign",
    "assurance": "qos",
    "await_all": "reply_when_durable",
    "await_durable": "reply_when_durable",
    "bury": "dead_letter",
    "crowded": "backlogged",
    "expel": "close",
    "give_out": "export",
    "hang_up": "close",
    "hears": "read_scope, or can_represent",
    "holdings": "declarations, or bindings",
    "knocked": "wants_shared",
    "let_go": "release, close or on_closed",
    "let_lapse": "expire",
    "lose_channel": "on_closed",
    "may_hear": "may_read",
    "pass_by": "reserve",
    "see_off": "close",
    "speakable": "valid topic name",
    "speaker": "publishing_session",
    "stand_back": "lower_priority",
    "stir": "schedule_drain",
    "stirred": "schedule_drain",
    "take_in": "import_",
    "turn_away": "reject",
    "turn_out": "abort",
    "unheard": "unread_input",
    "unsayable": "unrepresentable",
}

#: Names that no variable or parameter may have, because they do not say what the value is.
VAGUE_VARIABLES: Final = frozenset(("asked", "found", "made", "said", "told"))

#: Old names of modules and packages, and the present ones. Tests may use them.
OLD_MODULES: Final = {
    "carbon": "cc_headers",
    "census": "totals",
    "deaths": "x_death",
    "dialects": "relay_formats",
    "entrance": "listener_context",
    "flight": "inflight",
    "guessing": "login_throttle",
    "holdings": "declarations, or bindings",
    "journaled": "journal_codec",
    "latecomer": "retained_delivery",
    "layered": "layered_link",
    "letters": "dead_letters",
    "metered": "rate_limited_link",
    "ours": "extensions",
    "pen": "publish_writer",
    "people": "users",
    "places": "vhosts_policies",
    "ranked": "priority",
    "recovering": "recovery",
    "reviewing": "reauthorization",
    "storing": "store_writer",
    "warming": "prewarming",
}
