"""SmolLM2 in a device process that is killed: the next one gives the same answers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import Client
from tests.e2e.server_child import ServerChild

LIMIT_S = 120.0
PROMPT = "Once upon a time"
SHORT = SamplingParams(temperature=0.0, max_new_tokens=16, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, ignore_eos=True)


def test_a_killed_device_process_is_replaced_and_answers_as_before(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    options = ["--isolate-device", "--num-blocks", "300"]
    child = ServerChild(smollm2_bundle, tmp_path, options)
    with child.running() as target, Client(target) as client, ThreadPoolExecutor(4) as pool:
        before = client.generate(PROMPT, SHORT).answers[0].token_ids
        streams = [client.stream(prompt, LONG) for prompt in ("One", "Two", "Three", "Four")]
        heads = list(pool.map(next, streams))
        (device,) = psutil.Process(child.pid).children()
        device.kill()
        start = time.monotonic()
        ends = [deltas[-1] for deltas in pool.map(list, streams)]
        ended_s = time.monotonic() - start
        assert all(head.finish_reason is None for head in heads)
        assert {end.finish_reason for end in ends} == {FinishReason.ERROR}
        assert all("signal 9" in end.error for end in ends)
        client.wait_ready(LIMIT_S)
        assert client.generate(PROMPT, SHORT).answers[0].token_ids == before
        served_s = time.monotonic() - start
        print(f"streams ended after {ended_s:.2f} s, the next answer came after {served_s:.2f} s")
