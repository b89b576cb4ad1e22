"""all_or_error: several coroutines of one request at once, of which nobody wants a part."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_or_error(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as failures:
        # Not with `except*`: early versions of Python 3.11 put what is raised there into a group.
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
