"""Open files of streams: few, however many streams there are, and nothing is lost by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.stream.open_files import FileUser, OpenFiles


class User(FileUser):
    def __init__(self) -> None:
        self.open = False
        self.busy = False

    def close_idle(self) -> bool:
        if not self.busy:
            self.open = False
        return not self.busy


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(1, 5))
def test_the_files_used_last_stay_open(steps: list[tuple[int, bool]], most: int) -> None:
    files = OpenFiles()
    files.most = most
    users = [User() for _ in range(10)]
    order: list[User] = []
    for number, busy in steps:
        user = users[number]
        files.use(user)
        user.open, user.busy = True, busy
        order = [other for other in order if other is not user] + [user]
        opened = [other for other in users if other.open]
        busy_ones = sum(other.busy for other in opened)
        assert len(opened) <= most + busy_ones
        if not any(other.busy for other in users):
            assert len(opened) <= most
            assert all(other.open for other in order[-most:])
    for user in users:
        files.forget(user)
    assert len(files) == 0
