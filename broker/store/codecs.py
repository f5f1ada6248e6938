"""Codecs: how contents are written in the log.

The core knows a plain body; front ends have encodings of their own.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from broker.messages.message import PLAIN, Encoding
from broker.store.disk import StoreError, TooNew


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec:
    """How the contents of some encodings are written in the log. Front ends have theirs."""

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        """(tag, parameters, content), from which `load` makes an equal encoding.

        The content may be written anew for that.
        """
        raise NotImplementedError

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """The encoding of the content; the same object for equal ones. Raises ValueError."""
        raise NotImplementedError


class Codecs:
    """Which codec writes what. Tag 0 is a body without properties, and needs none."""

    def __init__(self) -> None:
        self._by_type: dict[type[Encoding], Codec] = {}
        self._by_tag: dict[int, Codec] = {}

    def register(self, codec: Codec, encodings: list[type[Encoding]], tags: list[int]) -> None:
        """The codec writes these kinds of encodings, and reads these tags (1 to 255)."""
        for encoding in encodings:
            self._by_type[encoding] = codec
        for tag in tags:
            assert 0 < tag < 256 and tag not in self._by_tag
            self._by_tag[tag] = codec

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        if encoding is PLAIN:
            return 0, b"", content
        codec = self._by_type.get(type(encoding))
        if codec is None:
            raise StoreError(f"contents of kind {type(encoding).__name__} cannot be stored")
        return codec.dump(encoding, content)

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """Raises TooNew, or ValueError."""
        if tag == 0:
            return PLAIN
        codec = self._by_tag.get(tag)
        if codec is None:
            raise TooNew(f"a message has an encoding (tag {tag}) that this version does not know")
        return codec.load(tag, parameters, content)
