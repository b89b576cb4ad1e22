"""Tenants: who has had how much of the engine, so that nobody's flood starves the others.

Owns the virtual token counters. Within which urgency class they count is `waiting_queue.py`'s
business.

Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), section 4, Virtual
Token Counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from omruntime.sequence import Sequence


class Tenants:
    """Weighted tokens of service by tenant; for the engine thread alone.

    A tenant that comes back from idleness starts no lower than the least of the active ones:
    absence saves nothing up, and pays nothing back. An idle tenant is forgotten once the active
    ones have caught up, so memory follows the live requests.
    """

    def __init__(self) -> None:
        self._num_live: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._service: dict[str, float] = {}
        self._idle_service: dict[str, float] = {}

    def service(self, tenant: str) -> float:
        """Tokens that an active tenant has had, divided by its weight."""
        return self._service[tenant]

    def enter(self, sequence: Sequence) -> None:
        """A request of a tenant begins to wait."""
        scheduling = sequence.request.scheduling
        tenant = scheduling.tenant
        if tenant not in self._num_live:
            least = min(self._service.values(), default=0.0)
            self._service[tenant] = max(least, self._idle_service.pop(tenant, 0.0))
            self._num_live[tenant] = 0
        self._weights[tenant] = scheduling.tenant_weight
        self._num_live[tenant] += 1

    def leave(self, sequence: Sequence) -> None:
        """A request of a tenant has finished."""
        tenant = sequence.request.scheduling.tenant
        self._num_live[tenant] -= 1
        if self._num_live[tenant]:
            return
        del self._num_live[tenant], self._weights[tenant]
        self._idle_service[tenant] = self._service.pop(tenant)
        least = min(self._service.values(), default=float("inf"))
        self._idle_service = {t: s for t, s in self._idle_service.items() if s > least}

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens of service: the prompt at its first admission, then every answer token.

        Each position that is scored counts like an answer token, as it takes as much.

        What is computed again after a preemption is the engine's doing and costs nothing.
        """
        tenant = sequence.request.scheduling.tenant
        self._service[tenant] += num_tokens / self._weights[tenant]

    def check(self, live: Collection[Sequence]) -> None:
        """Assert that exactly the tenants of live sequences are active."""
        counted = Counter(s.request.scheduling.tenant for s in live)
        assert counted == self._num_live, f"tenants differ: {counted} and {self._num_live}"
        assert self._service.keys() == self._num_live.keys(), "a tenant has no service count"

    def __len__(self) -> int:
        """Tenants that are remembered."""
        return len(self._service) + len(self._idle_service)
