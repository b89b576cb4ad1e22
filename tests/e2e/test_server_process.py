"""The server as a process: start, signals, files and folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from demo.processes import ROOT, tool_command
from omruntime.sampling_params import SamplingParams
from server.client import Client
from tests.e2e.server_child import ServerChild

SHORT = SamplingParams(temperature=0, max_new_tokens=4)
LONG = SamplingParams(temperature=0, max_new_tokens=100, ignore_eos=True)


def test_health_and_reflection_answer_third_party_clients(server: ServerChild) -> None:
    with grpc.insecure_channel(server.target) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"omserve.v1.InferenceService", "omserve.v1.ControlService"} <= set(services)


def test_om_client_generate_prints_one_json_object(server: ServerChild) -> None:
    command = [*tool_command("server.terminal.cli"), "generate", "--target", server.target]
    options = ["--prompt", "The capital of France is", "--max-new-tokens", "3", "--ignore-eos"]
    done = subprocess.run(
        [*command, *options, "--temperature", "0", "--json"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    reply = json.loads(done.stdout)
    assert reply["text"] == " Paris.\n" or reply["text"].startswith(" Paris")
    assert reply["token_ids"][0] == 7042
    assert reply["finish_reason"] == "length"
    assert reply["usage"]["num_output_tokens"] == 3
    assert reply["timings"].keys() >= {"queue_s", "prefill_s", "decode_s"}


@pytest.mark.parametrize("delay_s", [1.0, 2.5])
def test_a_signal_during_the_start_ends_it(
    smollm2_bundle: Path, tmp_path: Path, delay_s: float
) -> None:
    """BL-45: while a real model is read; moments before that are in `tests/server/test_app.py`."""
    child = ServerChild(smollm2_bundle, tmp_path)
    child.start()
    try:
        time.sleep(delay_s)
        child.signal()
        # Before Python has set its handlers the signal itself ends the process.
        assert child.wait() in (0, -signal.SIGTERM)
        assert "Traceback" not in child.log.read_text()
    finally:
        child.kill()


def test_odd_folder_names_and_two_servers_on_one_read_only_bundle(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    """BL-46."""
    bundle = tmp_path / "modèles 模型" / "my bundle#1 (v2)%20"
    shutil.copytree(smollm2_bundle, bundle, copy_function=os.link)
    for path in (bundle, *bundle.rglob("*")):
        if path.is_dir():
            path.chmod(0o555)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    options = ["--num-blocks", "64"]
    servers = [ServerChild(bundle, folder, options) for folder in folders]
    with servers[0].running(cwd=Path("/")) as first, servers[1].running() as second:
        for target in (first, second):
            with Client(target) as client:
                answer = client.generate("The capital of France is", SHORT).answers[0]
                assert answer.token_ids[0] == 7042
    for path in bundle.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def test_a_bundle_swapped_or_removed_keeps_serving(smollm2_bundle: Path, tmp_path: Path) -> None:
    """BL-49: the running server keeps the files that it opened."""
    bundle = tmp_path / "bundle"
    shutil.copytree(smollm2_bundle, bundle)
    child = ServerChild(bundle, tmp_path, ["--num-blocks", "64"])
    with child.running() as target, Client(target) as client:
        before = client.generate("Count: 1, 2, 3,", LONG).answers[0].token_ids
        bundle.rename(tmp_path / "old")
        shutil.copytree(smollm2_bundle, bundle, copy_function=os.link)
        shutil.rmtree(tmp_path / "old")
        assert client.generate("Count: 1, 2, 3,", LONG).answers[0].token_ids == before


@pytest.mark.parametrize("damage", ["missing", "shorter", "manifest"])
def test_a_damaged_bundle_ends_with_exit_code_2(
    smollm2_bundle: Path, tmp_path: Path, damage: str
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(smollm2_bundle, bundle, copy_function=os.link)
    tokenizer = bundle / "tokenizer" / "tokenizer.json"
    text = tokenizer.read_bytes()
    tokenizer.unlink()
    if damage == "shorter":
        tokenizer.write_bytes(text[:1000])
    if damage == "manifest":
        tokenizer.write_bytes(text)
        (bundle / "bundle.json").unlink()
        (bundle / "bundle.json").write_text("{}", encoding="utf-8")
    child = ServerChild(bundle, tmp_path)
    child.start()
    try:
        assert child.wait() == 2
        log = child.log.read_text()
        assert "Traceback" not in log
        assert "tokenizer.json" in log or damage == "manifest"
    finally:
        child.kill()
