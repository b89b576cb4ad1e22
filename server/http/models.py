"""GET /v1/models and one model by its id, which may hold a slash."""

from __future__ import annotations

from fastapi import APIRouter

from server.grpc_service import require_served_model
from server.http.gateway import Gateway


def model_routes(gateway: Gateway) -> APIRouter:
    """The routes that say what is served."""
    router = APIRouter(tags=["OpenAI"])

    def model() -> dict[str, object]:
        return {
            "id": gateway.model,
            "object": "model",
            "created": gateway.created,
            "owned_by": "omserve",
            # Beyond OpenAI's, by the name that vLLM's clients read.
            "max_model_len": gateway.max_model_len,
        }

    @router.get("/v1/models")
    async def list_models() -> dict[str, object]:
        """The one served model."""
        return {"object": "list", "data": [model()]}

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> dict[str, object]:
        """The served model, when that is its id."""
        require_served_model(model_id, gateway.model)
        return model()

    return router
