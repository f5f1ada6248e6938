"""The headers exchange: the arguments of a binding match the headers of a message.

The package `matching.fields` defines the arguments and the comparison of values.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.messages.message import Properties, headers_of
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.fields import create
from matching.fields.criteria import Criteria, InvalidCriteria
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.matcher import Search

#: A lookup among bindings with at most this many criteria is done in one turn. Uncompiled, 4,096
#: comparisons take up to 0.5 ms.
DIRECT_CRITERIA: Final = 4_096


class HeadersExchange(Exchange):
    """An exchange that matches the message's headers (AMQP 0-9-1 section 3.1.3.4)."""

    kind: ClassVar[str] = "headers"
    hash_kind: ClassVar[str] = "HeadersExchange"
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        self._matcher: HeadersMatcher[Binding] = create()

    def check(self, binding: Binding) -> None:
        try:
            Criteria(binding.arguments)
        except InvalidCriteria as error:
            raise PreconditionFailed(str(error)) from None

    def added(self, binding: Binding) -> None:
        self._matcher.bind(binding.arguments, binding)

    def removed(self, binding: Binding) -> None:
        self._matcher.unbind(binding.arguments, binding)

    @property
    def uses_keys(self) -> bool:
        return False

    @property
    def lookup_steps(self) -> i64:
        return 0 if self.needs_search else self._matcher.examined

    @property
    def needs_search(self) -> bool:
        return self._matcher.weight > DIRECT_CRITERIA

    def searches(
        self, key: str, properties: Properties, bindings: list[Binding]
    ) -> list[Search[Binding]]:
        return self._matcher.searches(headers_of(properties), bindings)

    def rows(self) -> list[FieldsRow[Binding]]:
        """Return the bindings in rows, the oldest row first. A row has bindings with equal
        arguments.
        """
        return self._matcher.rows()

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return self._matcher.match(headers_of(properties))
