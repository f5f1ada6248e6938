"""A pytest plugin that makes pytest-xdist cheap for thousands of tests.

controller    forgets finished tests, and finds the index of a test in a dictionary. So its CPU
              time does not grow with the square of the number of tests
worker        tells the controller the group of each test, and sends no event that the controller
              would not show

The tests of a group run in one worker, so that a fixture that they share is made once, and not
once per worker. The mark `xdist_group` names a group. All tests of a file that use a fixture with a
scope wider than one test, such as a broker for the whole file, are a group without a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest

#: Scopes of the fixtures whose tests run in one worker.
SHARED_SCOPES: Final = ("class", "module", "package")


class Collection(list[str]):
    """The names of the tests of a worker, in the worker's order, with a fast `index`."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._indexes = {name: index for index, name in enumerate(self)}

    def index(self, name: str, *bounds: Any) -> int:
        """Return the index of a test in the whole list; `bounds` are ignored."""
        return self._indexes[name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for `--dist loadgroup` that forgets groups of finished tests."""
    if config.getoption("dist") != "loadgroup":
        return None
    # Only the controller of several workers needs this module.
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    mark, add = scheduler.mark_test_complete, scheduler.add_node_collection

    def mark_and_forget(node: Any, item_index: int, duration: float = 0) -> None:
        mark(node, item_index, duration)
        group = scheduler._split_scope(scheduler.registered_collections[node][item_index])
        given = scheduler.assigned_work[node]
        if all(given[group].values()):
            del given[group]

    def add_indexed(node: Any, collection: Sequence[str]) -> None:
        add(node, collection)
        registered = scheduler.registered_collections
        if node in registered:
            registered[node] = Collection(registered[node])

    scheduler.mark_test_complete = mark_and_forget
    scheduler.add_node_collection = add_indexed
    return scheduler


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins of a worker.

    EventFilter is left out if a command-line option asks for all reports of each test.
    """
    if not hasattr(config, "workerinput"):
        return
    option = config.option
    if option.loadgroup:
        config.pluginmanager.register(GroupNames(), "group names")
    if not (option.verbose > 0 or option.durations or option.xmlpath or "P" in option.reportchars):
        config.pluginmanager.register(EventFilter(), "event filter")


def _interactor(session: pytest.Session) -> Any:
    """Return the plugin with which pytest-xdist sends the events of a worker."""
    plugins: set[Any] = session.config.pluginmanager.get_plugins()
    [interactor] = [one for one in plugins if type(one).__name__ == "WorkerInteractor"]
    return interactor


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of a test; "" for none."""
    marked = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
    if marked:
        return "_".join(sorted(marked))
    fixtures: Any = getattr(item, "_fixtureinfo", None)
    shared = fixtures is not None and any(
        definition.scope in SHARED_SCOPES
        for name, definitions in fixtures.name2fixturedefs.items()
        if not name.startswith("_")
        for definition in definitions
    )
    return item.nodeid.partition("::")[0] if shared else ""


class GroupNames:
    """A plugin of a worker that appends the group of a test to the name that the controller gets.

    The name is then `test@group`. Without this plugin, groups have no effect: pytest-xdist 3.8
    appends the group to an attribute that pytest 9.2 does not read.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Change the list of tests that the worker sends after the collection."""
        interactor = _interactor(session)
        send = interactor.sendevent

        def send_groups(name: str, **kwargs: Any) -> None:
            if name == "collectionfinish":
                kwargs["ids"] = [self.name(item) for item in session.items]
            send(name, **kwargs)

        interactor.sendevent = send_groups

    @staticmethod
    def name(item: pytest.Item) -> str:
        """Return the name of a test with its group."""
        group = group_of(item)
        return (
            item.nodeid
            if not group or item.nodeid.endswith("@" + group)
            else (f"{item.nodeid}@{group}")
        )


class EventFilter:
    """A plugin of a worker that does not send events which the controller would not show.

    The plugin drops four of the six events of most tests: the start and the end of a test, and the
    reports of a setup or a teardown that passed without output.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Put the filter before the method with which pytest-xdist sends events."""
        interactor = _interactor(session)
        send = interactor.sendevent

        def send_shown(name: str, **kwargs: Any) -> None:
            if name in {"logstart", "logfinish"}:
                return
            if name == "testreport" and "outcome" not in kwargs["data"]:
                return
            send(name, **kwargs)

        interactor.sendevent = send_shown

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: object) -> dict[str, Any] | None:
        """Return {} instead of the converted report if the filter drops the report anyway.

        A conversion takes time. For other reports, return None: pytest then converts the report.
        """
        if (
            isinstance(report, pytest.TestReport)
            and report.when != "call"
            and report.passed
            and not report.sections
        ):
            return {}
        return None
