"""JsonRoute: reads bodies as JSON has them, and no more.

Python's reader lets through what JSON does not know (NaN, Infinity) and what nobody can write down
again (half of a surrogate pair, a number beyond all); each would end somewhere deep in a reply.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute


class JsonRoute(APIRoute):
    """A route with such bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return answer


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The body's value; the framework makes an answer of the one error that it knows."""
        encoding = self.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise _refusal(f"its content-encoding is {encoding[:32]!r}; send it uncompressed")
        body = await self.body()
        try:
            value = json.loads(
                body.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite
            )
            if b"\\u" in body:
                json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError:
            raise
        except UnicodeDecodeError as error:
            raise _refusal(f"it is not UTF-8: {error.reason}") from error
        except UnicodeEncodeError as error:
            raise _refusal("it holds half of a surrogate pair, which is no character") from error
        except RecursionError as error:
            raise _refusal("it is nested too deeply") from error
        except ValueError as error:
            raise _refusal("a number has too many digits") from error
        return value


def _refuse_constant(name: str) -> NoReturn:
    raise _refusal(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _refusal(f"the number {text[:32]} is too large")
    return value


def _refusal(message: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(message, "", 0)
