"""What operators ask: health, readiness and version."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from server.http.error_schema import NOT_SO
from server.http.gateway import Gateway
from server.lifecycle import ServerState
from server.version import omserve_version


def operation_routes(gateway: Gateway) -> APIRouter:
    """Health, readiness and version."""
    router = APIRouter(tags=["operations"])

    @router.get("/health", responses=NOT_SO)
    async def health() -> Response:
        """200 while the process can serve or is getting there; 503 after a device error."""
        state = gateway.lifecycle.state
        status = 503 if state is ServerState.FAILED else 200
        return JSONResponse({"state": state.value}, status)

    @router.get("/ready", responses=NOT_SO)
    async def ready() -> Response:
        """200 while requests are taken and not too many of them wait."""
        lifecycle = gateway.lifecycle
        overloaded = {"overloaded": True} if lifecycle.is_overloaded else {}
        state = {"state": lifecycle.state.value, **overloaded}
        return JSONResponse(state, 200 if lifecycle.is_ready else 503)

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of omserve."""
        return {"version": omserve_version()}

    return router
