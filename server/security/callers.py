"""Caller: who sent the request that the current task serves, and what that means for it.

Whoever checks keys sets `caller_var`; nothing is checked here. Limits are `caller_limits.py`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from omruntime.errors import FieldError, ForbiddenError
from server.text import TextRequest


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of one API key.

    Attributes:
        name: Of the key, for logs and messages.
        tenant: Whose requests these are; tenants share the engine by their weights, and share
            no cached prompts.
        tenant_weight: The tenant's share against others'.
        max_concurrent_requests: Requests that may run or wait at once; 0 allows none, for a key
            that only reads metrics. None: no limit, as below.
        requests_per_minute: Requests that may be sent, those that are refused among them.
        tokens_per_minute: Tokens of prompts and answers, counted when a request ends, so the
            requests that run when it is reached still finish.
        operator: Whether it may steer the server and look at everybody's requests, see
            `steering.py`.
    """

    name: str
    tenant: str
    tenant_weight: float = 1.0
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    operator: bool = False


caller_var: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Whom the current task serves; None when the server asks for no keys."""

authenticate_var: ContextVar[Callable[[], Caller] | None] = ContextVar("authenticate", default=None)
"""Checks the current call's key anew; None when the server asks for no keys."""


def renew_caller() -> Caller | None:
    """Look up whom the current task serves as of now, and set `caller_var`.

    For each request of a call that may outlive its key, or the key's limits.

    Raises:
        UnauthenticatedError: The key was withdrawn.
    """
    authenticate = authenticate_var.get()
    if authenticate is not None:
        caller_var.set(authenticate())
    return caller_var.get()


def require_possible(num_requests: int, field: str) -> None:
    """Check that the key's limits can ever let so many requests of one call run together.

    Otherwise a caller would be told to wait, again and again.

    Args:
        field: Which holds them, for the message.

    Raises:
        FieldError: They cannot.
    """
    caller = caller_var.get()
    if caller is None:
        return
    for name in ("max_concurrent_requests", "requests_per_minute"):
        most = getattr(caller, name)
        # 0 allows no request at all, which is said of each.
        if most and num_requests > most:
            raise FieldError(
                field,
                f"{field} is {num_requests} requests, but {name} of the API key {caller.name!r} "
                f"is {most}; send fewer at once",
            )


def as_callers(request: TextRequest) -> TextRequest:
    """The request in the caller's own name; unchanged when the server asks for no keys.

    Cached prompts are kept apart by tenant: how fast an answer begins, and `num_cached_tokens`,
    would otherwise tell whether somebody else has sent the same beginning. So are request ids: a
    taken one would tell that another's request lives.

    Raises:
        ForbiddenError: It names another tenant than the key's.
    """
    caller = caller_var.get()
    if caller is None:
        return request
    scheduling = request.scheduling
    if scheduling.tenant not in ("", caller.tenant):
        raise ForbiddenError(
            f"tenant is {scheduling.tenant[:64]!r}, but the API key {caller.name!r} is tenant "
            f"{caller.tenant!r}'s; leave tenant out"
        )
    return dataclasses.replace(
        request,
        owner=caller.tenant,
        cache_salt=f"{caller.tenant}:{request.cache_salt}",
        scheduling=dataclasses.replace(
            scheduling, tenant=caller.tenant, tenant_weight=caller.tenant_weight
        ),
    )
