"""Login throttling: slow down password guessing by a wait before the password is checked.

    failures before a login   0 to 4   5     6     7    ...   one is forgiven every FORGIVEN_SECONDS
    wait in seconds           none     0.1   0.2   0.4  ...   up to ADDRESS_WAIT_MAX, USER_WAIT_MAX

A guesser gains nothing by many connections: the logins of one client address stand in a line
(LoginLine). While no login has failed, FREE_FAILURES of them are checked at a time; each failure
lowers this number by one, down to one. The wait of a login begins when its turn comes.

Failures are counted by client address and by user name. The longest wait for a user name is
shorter, since clients at other addresses can cause these failures. Recently verified credentials
never wait. Failures of loopback addresses are not counted, since all programs of this machine share
these addresses; logins from loopback stand in a line for each user name. Both tables of failures
are bounded; the entry with the oldest failure is evicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.access.identity import Credentials, Identity, Verdict
from broker.eviction import evict_oldest
from protocols.peer import network_of

#: Number of failures after which the next login must wait.
FREE_FAILURES: Final = 5
#: Seconds after which one failure is forgiven.
FORGIVEN_SECONDS: Final = 30.0
#: Seconds of the first wait.
FIRST_WAIT: Final = 0.1
#: Longest wait in seconds, for failures of one address. (A handshake may take `limits.handshake`,
#: 10 s.)
ADDRESS_WAIT_MAX: Final = 5.0
#: Longest wait in seconds, for failures of one user name.
USER_WAIT_MAX: Final = 2.0
#: Seconds after which a login that still waits for its turn is answered as busy: the client has
#: given up by then, and the logins behind this login need not wait for its check.
LINE_SECONDS: Final = 10.0
#: Largest number of addresses, and of user names, whose failures are counted.
MAX_KEYS: Final = 10_000
#: Characters of a user name that are compared: longer names that begin with the same MAX_NAME
#: characters share their failures.
MAX_NAME: Final = 255


class LoginFailures:
    """A table of login failures by client address, or by user name.

    Each entry has the number of failures, and the time of the last failure. In the methods, `key`
    is an address or a user name, and `now` the present time in seconds of a monotonic clock.
    """

    def __init__(self, most: float) -> None:
        self._wait_max = most
        self._failures: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def count(self, key: str, now: float) -> float:
        """Return the number of failures of an address or user name that are not forgiven."""
        count, last = self._failures.get(key, (0.0, now))
        return max(0.0, count - (now - last) / FORGIVEN_SECONDS)

    def wait(self, key: str, now: float) -> float:
        """Return the seconds that the next login with this address or user name must wait."""
        over = round(self.count(key, now)) - FREE_FAILURES
        return 0.0 if over < 0 else min(self._wait_max, FIRST_WAIT * 2 ** min(over, 20))

    def add(self, key: str, now: float) -> None:
        """Count a login failure of an address or user name."""
        count = self.count(key, now) + 1
        self._failures.pop(key, None)
        if len(self._failures) >= MAX_KEYS:
            evict_oldest(self._failures)
        self._failures[key] = count, now

    def remove(self, key: str) -> None:
        """Remove all counted failures of an address or user name."""
        self._failures.pop(key, None)


class PendingLogin:
    """A login whose password is not checked yet, with the function that gets the verdict.

    `digest` identifies the credentials. `identity` is the user of the given name; None if the name
    is unknown. The user is logged in if the password fits `password_hash`. A login that still waits
    for its turn at the time `expires` (loop time in seconds) is answered as busy. `details` is the
    reason for the log if the login is refused.
    """

    __slots__ = (
        "answer",
        "credentials",
        "details",
        "digest",
        "expires",
        "identity",
        "line",
        "password_hash",
        "proof",
    )

    def __init__(
        self,
        digest: bytes,
        identity: Identity | None,
        password_hash: str,
        credentials: Credentials,
        answer: Callable[[Verdict], None],
        expires: float,
        details: str,
        proof: Callable[[], bool] | None = None,
    ) -> None:
        self.digest = digest
        self.identity = identity
        self.password_hash = password_hash
        self.credentials = credentials
        self.answer = answer
        self.expires = expires
        self.details = details
        #: Checks the client's proof instead of a password; called once, in a hashing thread.
        self.proof = proof
        #: The LoginLine in which the login waits; None if the login shares the check of another
        #: login with the same credentials.
        self.line: LoginLine | None = None


class LoginLine:
    """The logins of one client address that wait or are checked, in order of arrival.

    All addresses of an IPv6 network have one line (`network_of`). Clients on loopback share their
    addresses, so a line for loopback has the logins of one user name.
    """

    __slots__ = ("address", "running", "user", "waiting")

    def __init__(self, address: str, user: str) -> None:
        self.address = address
        #: The user name if the address is a loopback address, else "".
        self.user = user
        #: Number of logins whose turn has come: they are delayed or checked.
        self.running = 0
        #: Logins that wait for their turn.
        self.waiting: deque[PendingLogin] = deque()


class LoginThrottle:
    """Recent login failures by address and by user name. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.addresses = LoginFailures(ADDRESS_WAIT_MAX)
        self.users = LoginFailures(USER_WAIT_MAX)
        #: Number of logins that had to wait.
        self.throttled = 0

    def wait(self, user: str, address: str, local: bool, now: float) -> float:
        """Return the seconds that a login must wait; if above 0, count the login in `throttled`.

        `local` is True if the address is a loopback address.
        """
        seconds = max(
            self.users.wait(user[:MAX_NAME], now),
            0.0 if local else self.addresses.wait(network_of(address), now),
        )
        self.throttled += seconds > 0
        return seconds

    def places(self, line: LoginLine, now: float) -> int:
        """Return the number of logins of a login line that may be checked at the same time.

        The number falls by one for each failure of the line's address (for loopback: of the line's
        user name), down to 1.
        """
        failures = (
            self.users.count(line.user, now)
            if line.user
            else self.addresses.count(line.address, now)
        )
        return max(1, FREE_FAILURES - round(failures))

    def on_failure(self, user: str, address: str, local: bool, now: float) -> None:
        """Count a failed login. `local` is True if the address is a loopback address."""
        self.users.add(user[:MAX_NAME], now)
        if not local:
            self.addresses.add(network_of(address), now)

    def on_success(self, user: str) -> None:
        """Remove the counted failures of a user after a successful login.

        The failures of the address stay: one known password must not allow guessing others.
        """
        self.users.remove(user[:MAX_NAME])
