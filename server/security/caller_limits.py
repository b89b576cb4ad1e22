"""CallerLimits: how much each API key uses, and what is beyond its limits.

Fits `RequestObserver`, and `Lifecycle.entry`. What a limit is stands in `callers.py`; the whole
server's limits are the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omruntime.errors import ForbiddenError, OmError, RateLimitedError
from server.request_tally import Arrival, RequestTally
from server.security.callers import Caller, caller_var

MINUTE_S = 60.0
# When one of a caller's own requests will end is not known; a short answer takes about so long.
CONCURRENCY_RETRY_S = 1.0


class _Allowance:
    """So much a minute: what was used comes back evenly, and a minute's worth may go at once."""

    def __init__(self, now: float) -> None:
        self._used = 0.0
        self._at = now

    def wait_s(self, per_minute: int, now: float) -> float:
        """Seconds until at least 1 is left; 0 when it is."""
        rate = per_minute / MINUTE_S
        self._used = max(0.0, self._used - (now - self._at) * rate)
        self._at = now
        return max(0.0, (self._used + 1 - per_minute) / rate)

    def use(self, amount: int) -> None:
        """Take some, also beyond what is left."""
        self._used += amount


@dataclass(slots=True)
class _Use:
    requests: _Allowance
    tokens: _Allowance
    num_running: int = 0


class CallerLimits:
    """Counts by name of the key; for the event loop alone.

    Counts of keys that were removed stay: there are as many as names were ever in the file.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request of the current caller from its begin to its end.

        Raises:
            RateLimitedError: A limit of the key is reached.
            ForbiddenError: The key may send none at all.
        """
        caller = caller_var.get()
        if caller is None:
            yield
            return
        use = self._use_of(caller)
        self._require_concurrency(caller, use)
        self._require_rates(caller, use)
        use.requests.use(1)
        use.num_running += 1
        try:
            yield
        finally:
            use.num_running -= 1

    def arrived(self, arrival: Arrival) -> None:
        """Tokens count when their request is over."""

    def finished(self, tally: RequestTally) -> None:
        """Count the tokens of a request that is over."""
        caller = caller_var.get()
        if caller is not None:
            self._use_of(caller).tokens.use(tally.num_prompt_tokens + tally.num_output_tokens)

    def refused(self, error: OmError) -> None:
        """Requests that were not taken have used no tokens."""

    def _use_of(self, caller: Caller) -> _Use:
        if caller.name not in self._uses:
            now = self._clock()
            self._uses[caller.name] = _Use(_Allowance(now), _Allowance(now))
        return self._uses[caller.name]

    def _require_concurrency(self, caller: Caller, use: _Use) -> None:
        most = caller.max_concurrent_requests
        if most == 0:
            raise ForbiddenError(f"the API key {caller.name!r} may not send requests")
        if most is not None and use.num_running >= most:
            raise RateLimitedError(
                f"{use.num_running} requests of the API key {caller.name!r} run or wait, its "
                f"limit is {most}; wait for one to end",
                CONCURRENCY_RETRY_S,
            )

    def _require_rates(self, caller: Caller, use: _Use) -> None:
        now = self._clock()
        for limit, allowance, what in (
            (caller.requests_per_minute, use.requests, "requests"),
            (caller.tokens_per_minute, use.tokens, "tokens"),
        ):
            if limit is None:
                continue
            wait_s = allowance.wait_s(limit, now)
            if wait_s > 0:
                raise RateLimitedError.until(
                    f"the API key {caller.name!r} has used its {limit} {what} a minute",
                    wait_s,
                )
