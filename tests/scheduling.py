"""A pytest plugin that makes pytest-xdist cheap for thousands of tests.

controller    forgets finished tests, and finds the index of a test in a dictionary. Otherwise
              its CPU time grows with the square of the number of tests
worker        sends no event that the controller would not show
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


class Collection(list[str]):
    """The names of the tests of a worker, in the worker's order. `index` takes no time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._indexes = {name: index for index, name in enumerate(self)}

    def index(self, name: str, *bounds: Any) -> int:
        """Return the index of a test."""
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
    """Register an EventFilter in each worker, unless an option asks for all reports of a test."""
    option = config.option
    wanted = option.verbose > 0 or option.durations or option.xmlpath or "P" in option.reportchars
    if hasattr(config, "workerinput") and not wanted:
        config.pluginmanager.register(EventFilter(), "event filter")


class EventFilter:
    """A plugin of a worker that does not send events which the controller would not show.

    The plugin drops four of the six events of most tests: the start and the end of a test, and the
    reports of a setup or a teardown that passed without output.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Put the filter before the method with which pytest-xdist sends events."""
        plugins: set[Any] = session.config.pluginmanager.get_plugins()
        [interactor] = [one for one in plugins if type(one).__name__ == "WorkerInteractor"]
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
        """Return no data for a report that is not sent, because its conversion takes time, too."""
        if (
            isinstance(report, pytest.TestReport)
            and report.when != "call"
            and report.passed
            and not report.sections
        ):
            return {}
        return None
