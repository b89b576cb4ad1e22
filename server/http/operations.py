"""What operators ask: health, readiness and version; and the tokenizer's two routes."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr

from omruntime.errors import FieldError
from server.control.service import omserve_version
from server.field_names import named_as
from server.grpc_service import MAX_DETOKENIZE_IDS, MAX_TOKENIZE_CHARS
from server.http.field_names import DETOKENIZE_NAMES
from server.http.gateway import Gateway
from server.http.json_route import JsonRoute
from server.http.schema import FastList
from server.lifecycle import ServerState


class TokenizeBody(BaseModel):
    """POST /tokenize."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    prompt: StrictStr
    add_special_tokens: StrictBool = True


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    tokens: FastList[StrictInt]
    skip_special_tokens: StrictBool = False


def operation_routes(gateway: Gateway) -> APIRouter:
    """Health, readiness, version, tokenize and detokenize."""
    router = APIRouter(tags=["operations"], route_class=JsonRoute)

    @router.get("/health")
    async def health() -> Response:
        """200 while the process can serve or is getting there; 503 after a device error."""
        state = gateway.lifecycle.state
        status = 503 if state is ServerState.FAILED else 200
        return JSONResponse({"state": state.value}, status)

    @router.get("/ready")
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

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, object]:
        """The token ids of a text."""
        generator = gateway.require(body.model)
        if len(body.prompt) > MAX_TOKENIZE_CHARS:
            raise FieldError(
                "prompt",
                f"prompt has {len(body.prompt)} characters, wanted at most {MAX_TOKENIZE_CHARS}; "
                f"send it in pieces",
            )
        with gateway.lifecycle.running():
            token_ids = await generator.tokenize(body.prompt, body.add_special_tokens)
        return {"tokens": list(token_ids), "count": len(token_ids)}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of token ids."""
        generator = gateway.require(body.model)
        if len(body.tokens) > MAX_DETOKENIZE_IDS:
            raise FieldError(
                "tokens",
                f"tokens has {len(body.tokens)} ids, wanted at most {MAX_DETOKENIZE_IDS}; send "
                f"them in pieces",
            )
        with gateway.lifecycle.running(), named_as(DETOKENIZE_NAMES):
            prompt = await generator.detokenize(body.tokens, body.skip_special_tokens)
        return {"prompt": prompt}

    return router
