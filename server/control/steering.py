"""Steering: who may do what touches others, and whose requests a caller may see and end.

With API keys that takes a key of an operator. Without, it is open where only people of this
machine or holders of client certificates get in, and closed to strangers on a network.
"""

from __future__ import annotations

from omruntime.errors import ForbiddenError
from server.security.access import Access
from server.security.callers import caller_var


def require_steering(access: Access, what: str) -> None:
    """Check that the current caller may steer the server.

    Args:
        what: What was asked for, for the message.

    Raises:
        ForbiddenError: It may not.
    """
    caller = caller_var.get()
    if access.keys is not None:
        if caller is None or not caller.operator:
            name = "" if caller is None else f" {caller.name!r}"
            raise ForbiddenError(
                f"{what} is for operators, and the API key{name} is none's; make one with: "
                f"om-serve keys add NAME --operator"
            )
    elif not access.is_steering_open:
        raise ForbiddenError(
            f"{what} is closed, as this server listens beyond loopback and asks for neither API "
            f"keys nor client certificates; start it with --api-keys, or use its machine's "
            f"SIGTERM to drain it"
        )


def may_steer(access: Access) -> bool:
    """Whether `require_steering` lets the current caller through."""
    try:
        require_steering(access, "this")
    except ForbiddenError:
        return False
    return True


def own_tenant() -> str | None:
    """Whose requests alone the current caller may name; None: everybody's."""
    caller = caller_var.get()
    return None if caller is None or caller.operator else caller.tenant
