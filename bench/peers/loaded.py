"""Peers that `om-client bench` can load: a bundle in this process, and OpenAI's servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.peers.peer import Run
from bench.workloads import SizedWorkload
from omruntime.errors import CallError
from omruntime.manifest import Manifest
from server.client.security import ClientSecurity
from server.terminal.bench.records import Outcome, Record
from server.terminal.bench.runner import run_load
from server.terminal.bench.targets.in_process import InProcessTarget
from server.terminal.bench.targets.over_openai import OpenAiTarget
from server.terminal.bench.targets.target import AskOptions, Target
from server.terminal.bench.workload import Conversation, Turn

OPTIONS = AskOptions(temperature=0.0, ignore_eos=True)


class Loaded:
    """See `Peer`; each worker sends the next prompt when its answer is whole."""

    def __init__(self, name: str, opening: Callable[[], Awaitable[Target]]) -> None:
        self.name = name
        self._runner = asyncio.Runner()

        async def opened() -> Target:
            return await opening()

        self._target = self._runner.run(opened())

    def run(self, work: SizedWorkload) -> Run:
        """See `Peer.run`.

        Raises:
            CallError: A request failed, or its answer is shorter than asked.
        """
        sized = zip(work.prompts, work.num_new_tokens, strict=True)
        conversations = [Conversation((Turn(p, len(p), n),)) for p, n in sized]
        records = self._runner.run(run_load(self._target, conversations, work.concurrency))
        for record in records:
            self._require_whole(record)
        ttft_s = tuple(record.ttft_s for record in records if record.ttft_s is not None)
        return Run(max(record.end_s for record in records), ttft_s)

    def close(self) -> None:
        """See `Peer.close`."""
        self._runner.run(self._target.close())
        self._runner.close()

    def _require_whole(self, record: Record) -> None:
        if record.outcome is not Outcome.OK or record.num_tokens != record.num_asked_tokens:
            got = record.error or f"{record.num_tokens} tokens"
            raise CallError(
                "BENCH", f"{self.name}: got {got}, wanted {record.num_asked_tokens} tokens"
            )


def bundle_peer(named: str) -> Loaded:
    """BUNDLE[@DEVICE] in this process, on all its cores."""
    path, _, device = named.partition("@")
    manifest = Manifest.read(Path(path))
    device = device or ("openvino" if manifest.kv.dtype == "bfloat16" else "cpu")
    name = f"omserve {Path(path).name} ({manifest.model.dtype})@{device}"
    return Loaded(name, lambda: InProcessTarget.open(Path(path), device, OPTIONS))


def server_peer(named_url: str) -> Loaded:
    """NAME=URL of a server with OpenAI's completions, which takes token ids and `ignore_eos`."""
    name, _, url = named_url.partition("=")

    async def opened() -> Target:
        target = OpenAiTarget(url, ClientSecurity(), OPTIONS, is_chat=False)
        await target.facts()
        return target

    return Loaded(name, opened)
