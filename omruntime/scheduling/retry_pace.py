"""RetryPace: when a refused request had better come back, by how fast the queue moves.

Owns the measured rate and the times already promised. What is refused is the queue's choice.
"""

from __future__ import annotations

from collections import deque

# Departures that the rate is taken from: enough to even out a step that admits several at once.
# Only time in which somebody waited for a place counts: neither an idle hour nor the step in which
# a burst fills an idle engine says how fast places come free. Nor do those who gave up waiting: a
# connection that is lost with hundreds of them makes room once.
MAX_DEPARTURES = 64
# Before the queue has moved at all. A step takes far less, an answer rarely more than a few.
UNKNOWN_S = 1.0
# Shorter waits would come back within the same step.
LEAST_S = 0.1
# Longer ones tell more of the rate's noise than of the queue, and idle a server that has drained.
MOST_S = 60.0


class RetryPace:
    """Tells refused callers times one after the other, at the rate at which places come free.

    If all were told the same time, they would come back at once and most be refused again.
    All times are seconds of `time.monotonic`; for one thread.
    """

    def __init__(self) -> None:
        # Seconds since the one before left, or since somebody waits; and the tokens that left.
        self._departures: deque[tuple[float, int]] = deque(maxlen=MAX_DEPARTURES)
        # Somebody waits for a place since then, and nobody has left.
        self._since = 0.0
        # The engine had no place for somebody who waits still.
        self._is_full = False
        # The place that was promised last comes free at that time.
        self._promised_until = 0.0

    def began(self, now: float) -> None:
        """Somebody waits, and nobody did before."""
        self._since = now

    def filled(self, now: float) -> None:
        """Somebody waits for whom the engine, asked now, has no place."""
        if not self._is_full:
            self._is_full, self._since = True, now

    def left(self, num_tokens: int, now: float, *, others_wait: bool) -> None:
        """A request of so many tokens has left the queue to run."""
        gap_s, self._since = now - self._since, now
        # One that waited for the first of several alike, on an engine with room, tells no pace.
        if self._is_full and (others_wait or gap_s >= LEAST_S):
            self._departures.append((gap_s, num_tokens))

    def emptied(self) -> None:
        """Nobody waits any more, so there is room for all that were promised some."""
        self._promised_until = 0.0
        self._is_full = False

    def wait_for_request(self, now: float) -> float:
        """Seconds until a caller finds a place where the number of requests is the limit."""
        per_request, _ = self._seconds_each(now)
        return self._promise(per_request, per_request, now)

    def wait_for_tokens(self, excess: int, own: int, now: float) -> float:
        """Seconds until a caller finds a place where the number of tokens is the limit.

        Args:
            excess: Tokens that must leave the queue first.
            own: Tokens that must leave for this caller once another was promised the next place.
            now: The time.
        """
        _, per_token = self._seconds_each(now)
        if per_token is None:
            return UNKNOWN_S
        return self._promise(excess * per_token, own * per_token, now)

    def _promise(self, first_s: float | None, own_s: float | None, now: float) -> float:
        if first_s is None or own_s is None:
            return UNKNOWN_S
        place_at = now + first_s
        if self._promised_until > now:
            place_at = max(place_at, self._promised_until + own_s)
        self._promised_until = min(now + MOST_S, place_at)
        return max(LEAST_S, self._promised_until - now)

    def _seconds_each(self, now: float) -> tuple[float, float] | tuple[None, None]:
        """Seconds for a request and for a token to leave; None before a request has left.

        By the latest departures, up to now, so that a queue that stands still slows down.
        """
        if not self._departures:
            return None, None
        elapsed = sum(gap_s for gap_s, _ in self._departures) + now - self._since
        num_tokens = sum(tokens for _, tokens in self._departures)
        return elapsed / len(self._departures), elapsed / max(1, num_tokens)
