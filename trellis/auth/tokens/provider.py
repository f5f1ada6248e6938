"""The sources of the keys that verify tokens: a file, or an OpenID provider, whose keys are cached.

    at the start, and every `refresh` seconds -----> fetch
    a token with an unknown key ID ----------------> fetch, unless the last fetch began less than
                                                     `refetch` seconds ago
    a fetch failed --------------------------------> fetch again, after `refetch` seconds at first,
                                                     then after twice as long each time
    the keys are older than `keep` seconds --------> no token is accepted

There is at most one fetch at a time, in a thread. Up to WAITING_MAX logins wait for its result.

An unknown key ID proves that a token is invalid only if the last fetch succeeded. So a login with
an unknown key ID is answered as busy after a failed fetch, and if WAITING_MAX logins wait already.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from trellis import logs
from trellis.auth.tokens.fetching import FetchError, KeyFetcher
from trellis.auth.tokens.keys import Key, key_ids, read_key_file
from trellis.settings.tokens import Jwt

#: Largest number of logins that wait for a fetch. A waiting login has a token of up to 16 KiB.
WAITING_MAX: Final = 1_000
#: Number of waiting logins that are checked in one turn of the event loop.
PER_TURN: Final = 5


class KeySource:
    """A source of the keys that verify tokens."""

    def keys(self) -> Sequence[Key]:
        """Return the keys that may be used now."""
        raise NotImplementedError

    @property
    def doubt(self) -> str:
        """Reason why a key that is not in `keys` may be valid; "" if `keys` has all valid keys."""
        return ""

    def request(self, then: Callable[[], None]) -> bool:
        """Request another fetch of the keys, because a token needs a key that is not known.

        If a login can wait for a fetch, return True, and call `then` in a turn of the event loop
        after the end of the fetch. If not, return False, and do not call `then`.
        """
        return False

    def start(self) -> None:
        """Begin to fetch keys; called on the broker's event loop."""

    def close(self) -> None:
        """Fetch no more keys."""


class FileKeys(KeySource):
    """The keys of a file. After SIGHUP, a new instance reads the file again.

    The constructor raises SettingsError if the file has no usable keys.
    """

    def __init__(self, name: str) -> None:
        self._keys = read_key_file(name)

    def keys(self) -> Sequence[Key]:
        return self._keys


class ProviderKeys(KeySource):
    """The keys of a provider. `fetch` runs in a thread; it returns keys or raises FetchError."""

    def __init__(self, settings: Jwt, fetch: Callable[[], list[Key]]) -> None:
        self._settings = settings
        self._fetch = fetch
        self._keys: list[Key] = []
        #: Number of fetches by result, `ok` or `failed`.
        self.fetches = {"ok": 0, "failed": 0}
        #: Reason why the last fetch failed; "" if it succeeded.
        self.problem = ""
        self._fetched_at = 0.0
        self._began_at = 0.0
        self._failures = 0
        self._fetching = False
        self._closed = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._ready: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Number of logins that wait for keys now."""
        return len(self._waiting) + len(self._ready)

    @property
    def age(self) -> float:
        """Seconds since the keys were fetched; 0 if there are none."""
        return self._now() - self._fetched_at if self._keys else 0.0

    def keys(self) -> Sequence[Key]:
        return self._keys if self.age <= self._settings.keep else ()

    @property
    def doubt(self) -> str:
        if self.problem:
            return "the last fetch of the keys failed"
        renewing = self._fetching or self.waiting >= WAITING_MAX
        return "the keys are being renewed" if renewing else ""

    def resume(self, former: ProviderKeys) -> None:
        """Take over the keys of `former`, which this object replaces after a reload."""
        self._keys, self._fetched_at = former._keys, former._fetched_at
        self.fetches, self.problem = former.fetches, former.problem

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._release()

    def request(self, then: Callable[[], None]) -> bool:
        if self._closed or self.waiting >= WAITING_MAX:
            return False
        if not self._fetching:
            if self._now() - self._began_at < self._settings.refetch:
                return False
            self._begin()
        self._waiting.append(then)
        return True

    def _now(self) -> float:
        return 0.0 if self._loop is None else self._loop.time()

    def _begin(self) -> None:
        """Begin a fetch in a daemon thread, so that the broker can end during the fetch."""
        if self._timer is not None:
            self._timer.cancel()
        self._fetching = True
        self._began_at = self._now()
        threading.Thread(target=self._run, name="trellis-keys", daemon=True).start()

    def _run(self) -> None:
        """Fetch the keys, and pass them to the event loop. Runs in the thread of a fetch."""
        keys: list[Key] = []
        problem = ""
        try:
            keys = self._fetch()
        except FetchError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  (the logins that wait must get an answer)
            problem = f"{type(error).__name__}: {error}"
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._on_fetched, keys, problem)
        except RuntimeError:
            pass  # The loop is closed, so the result is not needed.

    def _on_fetched(self, keys: list[Key], problem: str) -> None:
        self._fetching = False
        if self._closed:
            return
        if keys:
            self._use(keys)
        else:
            self._fail(problem)
        self._release()

    def _use(self, keys: list[Key]) -> None:
        known, names = key_ids(self._keys), key_ids(keys)
        if names != known or self._failures:
            logs.info("token_keys", count=len(keys), keys=",".join(names)[:300])
        self._keys, self._fetched_at = keys, self._now()
        self._failures, self.problem = 0, ""
        self.fetches["ok"] += 1
        self._later(self._settings.refresh)

    def _fail(self, problem: str) -> None:
        settings = self._settings
        self._failures += 1
        self.problem = problem
        self.fetches["failed"] += 1
        seconds = min(settings.refresh, settings.refetch * 2 ** min(self._failures - 1, 20))
        self._later(seconds)
        left = max(0, round(settings.keep - self.age)) if self._keys else 0
        logs.warning(
            "token_keys_failed",
            error=problem[:300],
            again=f"{seconds}s",
            note=f"the keys of the last successful fetch are used for {left} s more"
            if left
            else "no token is accepted until the keys are fetched",
        )

    def _later(self, seconds: float) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(seconds, self._begin)

    def _release(self) -> None:
        """Continue the logins that waited for the fetch, PER_TURN of them in each turn."""
        idle = not self._ready
        self._ready.extend(self._waiting)
        self._waiting.clear()
        if idle and self._ready and self._loop is not None:
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        for _ in range(min(PER_TURN, len(self._ready))):
            self._ready.popleft()()
        if self._ready and self._loop is not None:
            self._loop.call_soon(self._continue)


def key_source(settings: Jwt) -> KeySource:
    """Return the source of keys that the settings name. Raises SettingsError."""
    if settings.fetches:
        return ProviderKeys(settings, KeyFetcher(settings).fetch)
    return FileKeys(settings.keys)
