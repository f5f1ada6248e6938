"""A pytest plugin that makes pytest-xdist's distribution of the tests cheap for thousands of tests.

At the end of each test, pytest-xdist counts the unfinished tests among all those that it has ever
given to the worker. So the controller's CPU time grows with the square of the number of tests.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for `--dist loadgroup` that forgets the groups whose tests are finished."""
    if config.getoption("dist") != "loadgroup":
        return None
    # Only the controller of several workers needs this module.
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            group = self._split_scope(self.registered_collections[node][item_index])
            given = self.assigned_work[node]
            if all(given[group].values()):
                del given[group]

    return Scheduling(config, log)
