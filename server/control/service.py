"""GrpcControlService: the RPCs of `omserve.v1.ControlService`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import aclosing
from dataclasses import dataclass

import grpc.aio

from omruntime.errors import RequestError, UnknownRequestError
from omruntime.limits import longest_served
from server.control.draining import MAX_GRACE_S, Drain
from server.control.load_watch import DEFAULT_INTERVAL_S, LoadWatch
from server.control.messages import (
    LEVEL_FROM_WIRE,
    LEVEL_TO_WIRE,
    STATE_TO_WIRE,
    buckets_to,
    load_to,
    snapshot_to,
)
from server.control.state_dump import dump_state
from server.control.steering import own_tenant, require_steering
from server.event_writer import EventWriter
from server.grpc_service import require_served_model, require_unary_size
from server.lifecycle import Lifecycle
from server.logs import log_level, set_log_level
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc
from server.seams import EngineLike
from server.security.access import Access
from server.settings import MIB, Settings
from server.version import omserve_version

logger = logging.getLogger(__name__)

# Whoever reports a defect can wait for the longest steps.
DUMP_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Controlled:
    """What is looked at and steered."""

    settings: Settings
    lifecycle: Lifecycle
    engine: EngineLike
    access: Access


class GrpcControlService(control_pb2_grpc.ControlServiceServicer):
    """Tells about the server, and steers it for whom `steering.py` lets."""

    def __init__(self, controlled: Controlled, model: str) -> None:
        """Answer for one server; `model` is the served name."""
        self._lifecycle = controlled.lifecycle
        self._engine = controlled.engine
        self._settings = controlled.settings
        self._access = controlled.access
        self._is_simulated = controlled.settings.engine.is_simulated
        self._watch = LoadWatch(
            controlled.lifecycle, controlled.engine, controlled.access, self._is_simulated
        )
        self._drains: set[asyncio.Task[None]] = set()
        self._model = model

    async def GetServerInfo(  # noqa: N802 - the RPC's name
        self, request: pb.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetServerInfoResponse:
        """Tell what this process is and how far it has come."""
        return pb.GetServerInfoResponse(
            version=omserve_version(),
            state=STATE_TO_WIRE[self._lifecycle.state],
            detail=self._lifecycle.detail,
            uptime_s=self._lifecycle.uptime_s,
            device=self._settings.engine.device,
            is_simulated=self._is_simulated,
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
            max_model_len=longest_served(limits, manifest),
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
        return load_to(self._engine.load())

    async def GetBuckets(  # noqa: N802 - the RPC's name
        self, request: pb.GetBucketsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetBucketsResponse:
        """Tell how the buckets are used."""
        self._lifecycle.require_loaded()
        state = await self._engine.inspect()
        num_switches = self._engine.counters().num_bucket_switches
        return buckets_to(state, num_switches, self._is_simulated)

    async def WatchLoad(  # noqa: N802 - the RPC's name
        self, request: pb.WatchLoadRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Tell what the server holds and has done, again and again."""
        interval_s = request.interval_s if request.HasField("interval_s") else DEFAULT_INTERVAL_S
        writer = EventWriter(context, self._settings.slow_reader_timeout_s)
        async with aclosing(self._watch.snapshots(interval_s, request.details)) as snapshots:
            async for snapshot in snapshots:
                await writer.write(snapshot_to(snapshot))

    async def Abort(  # noqa: N802 - the RPC's name
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext
    ) -> pb.AbortResponse:
        """End live requests."""
        generator = self._lifecycle.require_loaded()
        which = request.WhichOneof("target")
        if which == "request_id" and request.request_id:
            # Not to others: whether their requests live is theirs to know, too.
            num_aborted = generator.abort(request.request_id, own_tenant())
            if not num_aborted:
                raise UnknownRequestError(
                    f"no live request has the id {request.request_id[:200]!r}; it may have ended"
                )
            return pb.AbortResponse(num_aborted=num_aborted)
        if which == "all":
            require_steering(self._access, "aborting all requests")
            return pb.AbortResponse(num_aborted=generator.abort_all())
        if which == "tenant":
            if request.tenant != own_tenant():
                require_steering(self._access, "aborting the requests of another tenant")
            return pb.AbortResponse(num_aborted=generator.abort_all(request.tenant))
        raise RequestError(
            "nothing to abort: set request_id to the id of a request, or one of tenant and all"
        )

    async def Drain(  # noqa: N802 - the RPC's name
        self, request: pb.DrainRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Finish what runs and take nothing new; tell how far it is."""
        require_steering(self._access, "draining the server")
        settings = self._settings
        grace_s = request.grace_s if request.HasField("grace_s") else settings.drain_timeout_s
        if not 0 <= grace_s <= MAX_GRACE_S:  # NaN is neither
            raise RequestError(f"grace_s is {grace_s:g}, wanted 0 to {MAX_GRACE_S:g}")
        logger.info("drain asked for grace_s=%g peer=%s", grace_s, context.peer())
        drain = Drain(self._lifecycle, self._engine, settings.drain_delay_s, grace_s)
        # Kept here, as it goes on when this call does not.
        self._drains.add(drain.task)
        drain.task.add_done_callback(self._drains.discard)
        writer = EventWriter(context, settings.slow_reader_timeout_s)
        async with aclosing(drain.changes()) as changes:
            async for progress in changes:
                await writer.write(pb.DrainResponse(**dataclasses.asdict(progress)))

    async def FlushPrefixCache(  # noqa: N802 - the RPC's name
        self, request: pb.FlushPrefixCacheRequest, context: grpc.aio.ServicerContext
    ) -> pb.FlushPrefixCacheResponse:
        """Forget all cached prompt beginnings."""
        require_steering(self._access, "flushing the prefix cache")
        self._lifecycle.require_loaded()
        num_blocks = await self._engine.flush_prefix_cache()
        logger.info("prefix cache flushed num_blocks=%d", num_blocks)
        return pb.FlushPrefixCacheResponse(num_blocks=num_blocks)

    async def SetLogLevel(  # noqa: N802 - the RPC's name
        self, request: pb.SetLogLevelRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetLogLevelResponse:
        """Log from another level on."""
        require_steering(self._access, "setting the log level")
        level = LEVEL_FROM_WIRE.get(request.level)
        if level is None:
            raise RequestError(
                f"level is {request.level}, wanted one of {', '.join(pb.LogLevel.keys()[1:])}"
            )
        previous = log_level()
        set_log_level(level)
        self._engine.log_from(logging.getLogger().level)
        logger.warning("log level changed from=%s to=%s", previous, level)
        return pb.SetLogLevelResponse(previous_level=LEVEL_TO_WIRE.get(previous))

    async def DumpState(  # noqa: N802 - the RPC's name
        self, request: pb.DumpStateRequest, context: grpc.aio.ServicerContext
    ) -> pb.DumpStateResponse:
        """Tell all that is known of the server's state."""
        require_steering(self._access, "dumping the state")
        now = await self._watch.snapshot(details=True, max_wait_s=DUMP_WAIT_S)
        dump = dump_state(omserve_version(), self._settings, self._lifecycle, self._engine, now)
        response = pb.DumpStateResponse(json=dump.text, cuts=dump.cuts)
        require_unary_size(response, "report this as a defect: the dump should be smaller")
        return response
