"""One page of a long list, selected by the broker: it makes rows only for the page.

The gateway can select a page of each list, too, but only from a row for each object, which the
broker must make and send. The views of the web page request the first page of the longest lists
again and again. So the handlers of these lists name the columns whose values are cheap to read, and
how to read them. A page that needs anything else (another column, a regular expression, a late
page) is left to the gateway. The broker and the gateway select the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from trellis.http.contract import PAGE_SIZE
from trellis.http.management.answers import ApiRefusal, Call, Row
from trellis.monitoring.route_rows import printable_key

#: The broker selects a page that ends within this number of rows from the list's beginning. The
#: gateway selects all later pages.
ROWS_MAX: Final = 1_000
#: Largest number of digits of a page and a size.
DIGITS_MAX: Final = 9
#: Number of added objects that are sorted into the page at once.
BATCH: Final = 128

Object = TypeVar("Object")
#: A sort key for the value of a column, which is comparable for all values (`sort_key`).
Key = tuple[int, float, str]
#: Functions that return the value of a column for an object, by the name of the column.
Columns = Mapping[str, Callable[[Object], object]]
#: The key of all objects if the list is not sorted.
_NO_KEY: Final[Key] = (0, 0.0, "")


def sort_key(value: object) -> Key:
    """Return the key by which lists are sorted: None first, then numbers, then text."""
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (0, 0.0, "") if value is None else (2, 0.0, printable_key(str(value)))


class Page:
    """The page of a list that a query asks for.

    `known` has the names of the columns by which the broker can sort.
    """

    def __init__(self, query: Mapping[str, str], known: Iterable[str]) -> None:
        self.sort = query.get("sort", "")
        self.reverse = query.get("sort_reverse") in ("true", "1")
        self.name = query.get("name", "").lower()
        self.number = _whole_number(query.get("page") or "1")
        self.size = _whole_number(query.get("page_size") or str(PAGE_SIZE))
        #: The number of rows up to the end of the page.
        self.last = self.number * self.size
        #: True if the broker selects the page. The gateway refuses a page or a size of 0.
        self.selected = (
            "page" in query
            and 0 < self.last <= ROWS_MAX
            and (not self.sort or self.sort in known)
            and not query.get("columns")
            and not (self.name and query.get("use_regex") in ("true", "1"))
        )

    def head(self, total: int, count: int) -> Row:
        """Return the fields of the answer without its rows.

        The list has `total` rows, and `count` of them pass the filter. Raises ApiRefusal if the
        page does not exist.
        """
        pages = -(-count // self.size)
        if self.number > max(1, pages):
            raise ApiRefusal(
                400,
                "page_out_of_range",
                f"page {self.number} does not exist; the last page is {max(1, pages)}",
            )
        return {
            "filtered_count": count,
            "page": self.number,
            "page_count": pages,
            "page_size": self.size,
            "total_count": total,
        }


def _whole_number(text: str) -> int:
    """Return a whole number of at most nine digits, or 0 for any other text."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else 0


class _FirstObjects(Generic[Object]):
    """The objects up to the end of a page, in the order of the list."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._sorted: list[tuple[Key, Object]] = []
        self._unsorted: list[tuple[Key, Object]] = []
        #: Objects whose keys do not come before this key are ignored; None to add all objects.
        self._bound: Key | None = None

    def add(self, key: Key, one: Object) -> None:
        """Add an object. Objects with equal keys stay in the order in which they were added."""
        bound = self._bound
        if bound is not None and (key <= bound if self._page.reverse else key >= bound):
            return
        self._unsorted.append((key, one))
        if len(self._unsorted) >= BATCH:
            self._merge()

    def _merge(self) -> None:
        both = [*self._sorted, *self._unsorted]
        both.sort(key=_key_of, reverse=self._page.reverse)
        del both[self._page.last :]
        self._sorted, self._unsorted = both, []
        if len(both) == self._page.last:
            self._bound = both[-1][0]

    def page(self) -> list[Object]:
        """Return the objects of the page."""
        self._merge()
        page = self._page
        return [one for _, one in self._sorted[page.last - page.size :]]


def _key_of(pair: tuple[Key, object]) -> Key:
    return pair[0]


async def selected_page(
    call: Call,
    objects: Iterable[Object | None],
    columns: Columns[Object],
    row: Callable[[Object], Row],
) -> Row | None:
    """Return the page of a list that the call asks for; None to let the gateway page the list.

    `objects` yields the objects of the list in order, and None for each object that is skipped.
    `columns` has the columns by which the broker can sort, among them `name`, by which the broker
    filters. `row` returns the row of an object.
    """
    page = Page(call.query, columns)
    if not page.selected:
        return None
    first: _FirstObjects[Object] = _FirstObjects(page)
    name, name_of, value_of = page.name, columns["name"], columns.get(page.sort)
    total = count = 0
    async with call.slice() as work:
        for one in objects:
            if one is not None:
                total += 1
                if not name or name in printable_key(str(name_of(one))).lower():
                    count += 1
                    first.add(_NO_KEY if value_of is None else sort_key(value_of(one)), one)
            if work.over:
                await work.pause()
        answer = page.head(total, count)
        items: list[Row] = []
        for one in first.page():
            items.append(row(one))
            if work.over:
                await work.pause()
    return answer | {"item_count": len(items), "items": items}
