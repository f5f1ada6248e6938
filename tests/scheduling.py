"""A pytest plugin that makes pytest-xdist's distribution of the tests cheap for thousands of tests.

At the end of each test, pytest-xdist counts the unfinished tests among all those that it has ever
given to the worker. So the controller's CPU time grows with the square of the number of tests.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for `--dist loadgroup` that forgets groups of finished tests."""
    if config.getoption("dist") != "loadgroup":
        return None
    # Only the controller of several workers needs this module.
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    mark = scheduler.mark_test_complete

    def mark_and_forget(node: Any, item_index: int, duration: float = 0) -> None:
        mark(node, item_index, duration)
        group = scheduler._split_scope(scheduler.registered_collections[node][item_index])
        given = scheduler.assigned_work[node]
        if all(given[group].values()):
            del given[group]

    scheduler.mark_test_complete = mark_and_forget
    return scheduler
