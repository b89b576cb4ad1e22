"""GrpcControlService: the RPCs of `omserve.v1.ControlService`."""

from __future__ import annotations

import dataclasses
from importlib import metadata

import grpc.aio

from omruntime.errors import RequestError, UnknownRequestError
from omruntime.limits import longest_sequence
from server.callers import caller_var
from server.grpc_service import require_served_model
from server.lifecycle import Lifecycle, ServerState
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc
from server.seams import EngineLike
from server.settings import MIB, Settings

_STATE_TO_WIRE = {
    ServerState.LOADING: pb.SERVER_STATE_LOADING,
    ServerState.SERVING: pb.SERVER_STATE_SERVING,
    ServerState.DRAINING: pb.SERVER_STATE_DRAINING,
    ServerState.FAILED: pb.SERVER_STATE_FAILED,
}


class GrpcControlService(control_pb2_grpc.ControlServiceServicer):
    """Tells about the server and aborts requests; never waits for the engine."""

    def __init__(
        self, lifecycle: Lifecycle, engine: EngineLike, settings: Settings, model: str
    ) -> None:
        """Answer for one engine; `model` is the served name."""
        self._lifecycle = lifecycle
        self._engine = engine
        self._settings = settings
        self._model = model

    async def GetServerInfo(  # noqa: N802 - the RPC's name
        self, request: pb.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetServerInfoResponse:
        """Tell what this process is and how far it has come."""
        return pb.GetServerInfoResponse(
            version=omserve_version(),
            state=_STATE_TO_WIRE[self._lifecycle.state],
            detail=self._lifecycle.detail,
            uptime_s=self._lifecycle.uptime_s,
            device=self._settings.engine.device,
            is_simulated=self._settings.engine.device.startswith("sim:"),
            max_message_bytes=self._settings.max_message_mib * MIB,
        )

    async def GetModelInfo(  # noqa: N802 - the RPC's name
        self, request: pb.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelInfoResponse:
        """Tell what is served and the limits in force."""
        if request.HasField("model"):
            require_served_model(request.model, self._model)
        manifest, limits = self._engine.manifest, self._engine.limits
        facts = manifest.model
        return pb.GetModelInfoResponse(
            name=self._model,
            architecture=facts.architecture,
            num_layers=facts.num_layers,
            num_heads=facts.num_heads,
            num_kv_heads=facts.num_kv_heads,
            head_dim=facts.head_dim,
            vocab_size=facts.vocab_size,
            dtype=facts.dtype,
            bos_token_id=facts.bos_token_id,
            eos_token_ids=facts.eos_token_ids,
            eos_source=facts.eos_source,
            sampling_defaults=pb.SamplingDefaults(**dataclasses.asdict(facts.sampling_defaults)),
            max_model_len=longest_sequence(
                limits.max_model_len, limits.num_blocks - 1, manifest.kv.block_size
            ),
            max_num_seqs=limits.max_num_seqs,
            block_size=manifest.kv.block_size,
            profile=manifest.profile,
            soc=manifest.soc,
            kv_identity=manifest.kv_identity,
        )

    async def GetLoad(  # noqa: N802 - the RPC's name
        self, request: pb.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetLoadResponse:
        """Tell what the engine holds."""
        self._lifecycle.require_loaded()
        return pb.GetLoadResponse(**dataclasses.asdict(self._engine.load()))

    async def Abort(  # noqa: N802 - the RPC's name
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext
    ) -> pb.AbortResponse:
        """End a live request."""
        generator = self._lifecycle.require_loaded()
        if not request.request_id:
            raise RequestError("request_id is not set; give the id of the request to abort")
        # Not to others: whether their requests live is theirs to know, too.
        caller = caller_var.get()
        if not generator.abort(request.request_id, None if caller is None else caller.tenant):
            raise UnknownRequestError(
                f"no live request has the id {request.request_id[:200]!r}; it may have ended"
            )
        return pb.AbortResponse()


def omserve_version() -> str:
    """The installed version; `unknown` when run from a tree that was never installed."""
    try:
        return metadata.version("omserve")
    except metadata.PackageNotFoundError:
        return "unknown"
