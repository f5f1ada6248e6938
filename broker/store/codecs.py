"""Codecs, which convert the contents of messages to and from their form in the log.

The core has one encoding, the plain body. The front end of each protocol registers codecs for its
encodings.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from broker.messages.message import PLAIN, Encoding
from broker.store.disk import StoreError, TooNew


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec:
    """A converter of message contents of some encodings to their form in the log, and back."""

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        """Return (tag, parameters, content) of a message, to be stored in the log.

        `load` makes an equal encoding from these values. The returned content may differ from the
        argument `content`.
        """
        raise NotImplementedError

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """Return the encoding of a stored content, from the values that `dump` returned.

        Equal encodings are one shared object. Raises ValueError if `parameters` cannot be read.
        """
        raise NotImplementedError


class Codecs:
    """The registered codecs, by encoding and by tag. Tag 0, the plain body, needs no codec."""

    def __init__(self) -> None:
        self._by_type: dict[type[Encoding], Codec] = {}
        self._by_tag: dict[int, Codec] = {}

    def register(self, codec: Codec, encodings: list[type[Encoding]], tags: list[int]) -> None:
        """Register a codec that writes these types of encodings and reads these tags (1 to 255)."""
        for encoding in encodings:
            self._by_type[encoding] = codec
        for tag in tags:
            assert 0 < tag < 256 and tag not in self._by_tag
            self._by_tag[tag] = codec

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        """Return (tag, parameters, content), as the log stores a message of this encoding.

        Raises StoreError if no codec is registered for the encoding.
        """
        if encoding is PLAIN:
            return 0, b"", content
        codec = self._by_type.get(type(encoding))
        if codec is None:
            raise StoreError(
                f"messages with {type(encoding).__name__} cannot be stored: no codec is registered"
                " for this encoding"
            )
        return codec.dump(encoding, content)

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """Return the encoding of a stored content.

        Raises TooNew if no codec reads the tag, ValueError if `parameters` cannot be read.
        """
        if tag == 0:
            return PLAIN
        codec = self._by_tag.get(tag)
        if codec is None:
            raise TooNew(
                f"a message has an encoding (tag {tag}) that this version of Trellis does not know"
            )
        return codec.load(tag, parameters, content)
