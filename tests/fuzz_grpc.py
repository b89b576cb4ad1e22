"""Seeded messages to every RPC of a port: no call may end in INTERNAL or UNKNOWN, or not at all.

`python -m tests.fuzz_grpc --count 10000` sends so many to each RPC of a server over a toy model, or
over a real one with `--bundle`; the test suite sends a few. Afterwards the server must hold nothing
and answer as ever.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from omruntime.sampling_params import SamplingParams
from server.client import Client
from server.dialects import kserve_messages, vllm_messages
from server.pb import control_pb2, inference_pb2
from tests.e2e.server_child import ServerChild
from tests.made_messages import change, damaged, fill
from tests.real_server import add_bundle_options, chosen_server, memory_line, resident_mb
from tests.toy_server import toy_server

pb = inference_pb2
CODE = grpc.StatusCode
# The child's own limit of 60 s would be paid by each session whose client grants no credits.
SERVER_OPTIONS = ("--slow-reader-timeout-s", "0.2")
CONCURRENCY = 16
# Among callers that ask for more than there is, one of low urgency waits for ten seconds at most
# until it is the oldest of its class.
HANG_S = 30.0
FORBIDDEN = {CODE.INTERNAL, CODE.UNKNOWN, CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED}
# Streams that have no end of their own are left after their first message.
ENDLESS = ("/grpc.health.v1.Health/Watch", "/omserve.v1.ControlService/WatchLoad")
# After it the server takes no more requests, so it comes last.
DRAIN = "Drain"
MAX_FRAMES = 6
# What the client's own library says when it writes a frame to a stream that the server has ended,
# in place of the status that the server gave.
ENDED_MEANWHILE = "Internal error from Core"

_SHORT = {"max_new_tokens": 3, "temperature": 0.0}
_PROMPT = pb.Prompt(text="Ab")
_IDS = pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2]))


def _kserve(**fields: Any) -> Message:
    request: Any = kserve_messages.MESSAGES.message_class("ModelInferRequest")(model_name="toy")
    prompt = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    prompt.contents.bytes_contents.append(b"Ab")
    request.parameters["max_tokens"].int64_param = 2
    for name, value in fields.items():
        request.parameters[name].bool_param = value
    return request


def _vllm(**fields: Any) -> Message:
    request: Any = vllm_messages.MESSAGES.message_class("GenerateRequest")(text="Ab", **fields)
    request.sampling_params.max_tokens = 2
    return request


def _session_frames() -> list[Message]:
    request = pb.GenerateStreamRequest(request_id="r", prompt=_PROMPT, sampling_params=_SHORT)
    return [
        pb.SessionRequest(start=pb.SessionStart(request=request)),
        pb.SessionRequest(start=pb.SessionStart(request=request, num_events=1)),
        pb.SessionRequest(cancel=pb.SessionCancel(request_id="r")),
        pb.SessionRequest(credits=pb.SessionCredits(request_id="r", num_events=3)),
    ]


_CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="Ab")])
# What is right to begin with, by RPC; all others begin with an empty message.
SAMPLES: dict[str, list[Message]] = {
    "Generate": [
        pb.GenerateRequest(prompt=_PROMPT, sampling_params=_SHORT),
        pb.GenerateRequest(
            prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2])), sampling_params=_SHORT
        ),
        pb.GenerateRequest(
            prompt=_PROMPT,
            sampling_params={**_SHORT, "n": 3, "logprobs": 2, "prompt_logprobs": 1, "stop": ["b"]},
        ),
        pb.GenerateRequest(
            prompt=_PROMPT,
            sampling_params={**_SHORT, "constraint": pb.Constraint(regex="[ab]+")},
        ),
    ],
    "GenerateStream": [pb.GenerateStreamRequest(prompt=_PROMPT, sampling_params=_SHORT)],
    "Session": _session_frames(),
    "Score": [
        pb.ScoreRequest(prompt=_PROMPT, continuations=[pb.Continuation(text="c")], top_logprobs=1)
    ],
    "Tokenize": [pb.TokenizeRequest(text="Ab"), pb.TokenizeRequest(chat=_CHAT)],
    "Detokenize": [pb.DetokenizeRequest(token_ids=[1, 2])],
    "ModelInfer": [_kserve()],
    "ModelStreamInfer": [_kserve(), _kserve(stream=True)],
    "ServerReflectionInfo": [
        reflection_pb2.ServerReflectionRequest(list_services="x"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="omserve.v1.Prompt"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_extension=reflection_pb2.ExtensionRequest(
                containing_type="omserve.v1.Prompt", extension_number=1
            )
        ),
    ],
}


def services() -> list[ServiceDescriptor]:
    """All that the port serves."""
    return [
        pb.DESCRIPTOR.services_by_name["InferenceService"],
        control_pb2.DESCRIPTOR.services_by_name["ControlService"],
        *(
            dialect.MESSAGES.pool.FindServiceByName(name)
            for dialect, name in (
                (kserve_messages, kserve_messages.KSERVE.full_name),
                (vllm_messages, vllm_messages.VLLM.full_name),
            )
        ),
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    ]


def methods() -> list[MethodDescriptor]:
    """Every RPC of the port."""
    return [method for service in services() for method in service.methods]


def made_bytes(rng: random.Random, method: MethodDescriptor) -> bytes:
    """One message for an RPC, or what is none."""
    message = GetMessageClass(method.input_type)()
    samples = [s for s in SAMPLES.get(method.name, ()) if s.DESCRIPTOR is message.DESCRIPTOR]
    if method.name == "Generate" and method.input_type.file.package.startswith("vllm"):
        samples = [_vllm(), _vllm(stream=True)]
    kind = rng.random()
    if kind < 0.25:
        fill(rng, message)
    elif samples:
        message.CopyFrom(rng.choice(samples))
        if kind < 0.65:
            change(rng, message)
    raw = message.SerializeToString()
    return damaged(rng, raw) if kind > 0.7 else raw


@dataclass
class Tally:
    """How the calls ended, what was wrong with them, and the server's memory around each RPC."""

    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)


class Fuzzer:
    """Sends messages to one server, some at once."""

    def __init__(self, channel: grpc.aio.Channel, seed: int, tally: Tally) -> None:
        self._tally = tally
        self._channel = channel
        self._seed = seed

    async def run(self, method: MethodDescriptor, count: int) -> None:
        """`count` calls of one RPC; the same seed, the same messages."""
        numbers = iter(range(count))
        await asyncio.gather(*(self._some(method, numbers) for _ in range(CONCURRENCY)))

    async def _some(self, method: MethodDescriptor, numbers: Iterator[int]) -> None:
        for number in numbers:
            path = f"/{method.containing_service.full_name}/{method.name}"
            rng = random.Random(f"{self._seed} {path} {number}")
            code, said = await self._call(path, method, rng)
            self._tally.codes[code.name] += 1
            if code in FORBIDDEN or "internal error" in said:
                self._tally.faults.append(
                    f"{path} seed {self._seed} number {number}: {code} {said}"
                )

    async def _call(
        self, path: str, method: MethodDescriptor, rng: random.Random
    ) -> tuple[grpc.StatusCode, str]:
        """The status of one call, and its words."""
        if method.client_streaming:
            frames = [made_bytes(rng, method) for _ in range(rng.randint(1, MAX_FRAMES))]
            call = self._channel.stream_stream(path)(iter(frames), timeout=HANG_S)
        elif method.server_streaming:
            call = self._channel.unary_stream(path)(made_bytes(rng, method), timeout=HANG_S)
        else:
            call = self._channel.unary_unary(path)(made_bytes(rng, method), timeout=HANG_S)
        said: list[bytes] = []
        try:
            if method.client_streaming or method.server_streaming:
                async for reply in call:
                    said.append(reply)
                    if path in ENDLESS:
                        call.cancel()
                        return CODE.OK, ""
            else:
                await call
        except grpc.aio.AioRpcError as error:
            if error.details() == ENDED_MEANWHILE:
                return CODE.OK, ""
            return error.code(), str(error.details())
        return CODE.OK, _failures_in(path, said)


def _failures_in(path: str, replies: list[bytes]) -> str:
    """What replies of a stream say of requests that failed in it."""
    if path.endswith("/Session"):
        refusals = [pb.SessionResponse.FromString(reply).refusal for reply in replies]
        return " ".join(
            f"internal error: {refusal.message}"
            for refusal in refusals
            if refusal.code in (CODE.INTERNAL.value[0], CODE.UNKNOWN.value[0])
        )
    if path.endswith("/ModelStreamInfer"):
        response = kserve_messages.MESSAGES.message_class("ModelStreamInferResponse")
        return " ".join(response.FromString(reply).error_message for reply in replies)  # type: ignore[attr-defined]
    return ""


def fuzz(child: ServerChild, count: int, seed: int) -> Tally:
    """Fuzz a server, see whether it is as before, and drain it in the same way."""
    tally = Tally()

    async def work(chosen: list[MethodDescriptor]) -> None:
        async with grpc.aio.insecure_channel(child.target) as channel:
            for method in chosen:
                await Fuzzer(channel, seed, tally).run(method, count)
                tally.resident_mb.append(resident_mb(child))

    tally.resident_mb.append(resident_mb(child))
    before = probe_answer(child)
    asyncio.run(work([method for method in methods() if method.name != DRAIN]))
    tally.faults += faults_of(child, before)
    asyncio.run(work([method for method in methods() if method.name == DRAIN]))
    if "Traceback" in (log := child.log.read_text()):
        tally.faults.append(f"in the log: {log[log.index('Traceback') :][:3000]}")
    return tally


def probe_answer(child: ServerChild) -> tuple[int, ...]:
    """What the server answers to one prompt, always the same."""
    params = SamplingParams(temperature=0.0, max_new_tokens=5, ignore_eos=True)
    with Client(child.target) as client:
        return client.generate((1, 2, 3), params).answers[0].token_ids


def faults_of(child: ServerChild, before: tuple[int, ...]) -> list[str]:
    """What is not as it should be on a server that nobody uses; `before` was its answer once."""
    faults = []
    with Client(child.target) as client:
        deadline = time.monotonic() + HANG_S
        while (load := client.load()).num_running + load.num_waiting:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if (load.num_running, load.num_waiting, load.num_referenced_blocks) != (0, 0, 0):
            faults.append(f"left behind: {load}")
    if (answer := probe_answer(child)) != before:
        faults.append(f"{answer} is another answer than {before} before")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="of each RPC (default: 10000)")
    parser.add_argument("--seed", type=int, default=1)
    add_bundle_options(parser)
    options = parser.parse_args()
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        chosen_server(options, Path(folder), toy_server, SERVER_OPTIONS) as child,
    ):
        tally = fuzz(child, options.count, options.seed)
    num_rpcs = len(methods())
    print(
        f"{options.count} calls of each of {num_rpcs} RPCs in {time.monotonic() - start:.0f} s: "
        + ", ".join(f"{name} {count}" for name, count in tally.codes.most_common())
    )
    print(memory_line(tally.resident_mb))
    for fault in tally.faults[:20]:
        print(f"FAILED: {fault}")
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
