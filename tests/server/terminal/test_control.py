"""The operator's commands of `om-client`: what they print, and how they end."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from pathlib import Path

import pytest

from omruntime.errors import CallError
from omruntime.settings import EngineSettings
from server.client import AsyncClient, Client
from server.client.async_control_calls import AsyncControlCalls
from server.client.control_calls import ControlCalls
from server.pb import control_pb2 as pb
from server.terminal.cli import main
from server.terminal.control import CONTROL_COMMANDS
from server.terminal.tables import bucket_table
from server.text import TextDelta
from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

Capture = pytest.CaptureFixture[str]


def run(server: FakeServer, *argv: str) -> int:
    return main([argv[0], "--target", server.target, *argv[1:]])


def test_the_operators_page_shows_every_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = {line.split()[1] for line in page.splitlines() if line.startswith("om-client ")}
    assert shown == CONTROL_COMMANDS.keys()


def test_info_for_people_and_for_programs(server: FakeServer, capsys: Capture) -> None:
    assert run(server, "info") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(", serving")
    assert "model        org/toy (ToyForCausalLM, float32)" in lines
    assert any(line.startswith("limits       128 tokens of prompt and answer, 4") for line in lines)
    assert "vocabulary   131; ends: 0, 2 (generation_config.json)" in lines
    assert lines[-1].startswith("unset means  temperature 0.6, top_k 20, top_p 1,")
    assert run(server, "info", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["server"]["device"], said["model"]["name"]) == ("cpu", "org/toy")


def test_load_for_people_and_for_programs(server: FakeServer, capsys: Capture) -> None:
    assert run(server, "load") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "requests     1 running, 2 waiting" in lines
    assert "kv blocks    4 held, 0 cached, 12 empty" in lines
    assert "finished     1 abort, 9 stop" in lines
    assert "padding      25.0 %" in lines
    assert run(server, "load", "--json") == 0
    assert json.loads(capsys.readouterr().out)["load"]["num_running"] == 1


def test_times_of_a_simulation_are_told_as_such(capsys: Capture) -> None:
    told = "a SIMULATION, whose times say nothing of a card"
    with FakeServer(settings_of(engine=EngineSettings(device="sim:0"))) as server:
        for command in ("load", "buckets"):
            assert run(server, command) == 0
            assert told in capsys.readouterr().out
            assert run(server, command, "--json") == 0
            assert json.loads(capsys.readouterr().out)["is_simulated"] is True
        assert run(server, "top", "--count", "1") == 0
        assert " simulated=true " in capsys.readouterr().out


def test_buckets_show_what_was_padding(server: FakeServer, capsys: Capture) -> None:
    assert run(server, "buckets") == 0
    head, decode, prefill, foot = capsys.readouterr().out.splitlines()
    words = [" ".join(line.split()) for line in (head, decode, prefill)]
    assert words == [
        "phase batch tokens past predicted steps padding warm-up",
        "decode 4 1 2 20.0 ms 10 25.0 % 0.10 s",
        "prefill 1 16 0 100.0 ms ? 3 16.7 % 0.40 s",
    ]
    assert foot.startswith("3 switches; warm-up 1.5 s")
    assert run(server, "buckets", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["buckets"]) == 2


def test_a_bucket_that_no_warm_up_ran_has_no_time_of_one() -> None:
    use = pb.BucketUse(phase=pb.PHASE_DECODE, batch=2, is_measured=True)
    _, row, _ = bucket_table(pb.GetBucketsResponse(buckets=[use]))
    assert row.split()[-2:] == ["-", "-"]


def test_abort_takes_one_kind_of_target(
    server: FakeServer, client: Client, capsys: Capture
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    stream = client.stream("x")
    next(stream)
    (request_id,) = server.generator.live
    assert run(server, "abort", "gone") == 1
    assert "NOT_FOUND" in capsys.readouterr().err
    assert run(server, "abort", request_id) == 0
    assert capsys.readouterr().out == "aborted 1\n"
    list(stream)
    server.await_that(lambda: not server.generator.live)
    assert run(server, "abort", "--all") == 0
    assert run(server, "abort", "--tenant", "") == 0
    assert capsys.readouterr().out == "aborted 0\naborted 0\n"
    for wrong in ([], ["id", "--all"], ["--all", "--tenant", "t"]):
        with pytest.raises(SystemExit) as ended:
            run(server, "abort", *wrong)
        assert ended.value.code == 2


def test_drain_ends_when_the_server_is_empty(server: FakeServer, capsys: Capture) -> None:
    assert run(server, "drain", "--grace-s", "5") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "drained, 0 aborted"
    assert server.engine.is_draining


def test_flush_and_log_level(server: FakeServer, capsys: Capture) -> None:
    before = logging.getLogger().level
    try:
        logging.getLogger().setLevel(logging.INFO)
        assert run(server, "flush") == 0
        assert run(server, "log-level", "warning") == 0
        assert logging.getLogger().level == logging.WARNING
    finally:
        logging.getLogger().setLevel(before)
    assert capsys.readouterr().out == "forgot 5 blocks\nwarning; before: info\n"


def test_dump_to_a_file_or_to_standard_output(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "dump.json"
    assert run(server, "dump", "--output", str(path)) == 0
    assert json.loads(path.read_text())["state"] == "serving"
    assert run(server, "dump") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "serving"
    assert run(server, "dump", "--output", str(tmp_path)) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_calls_of_asyncio_are_the_same(server: FakeServer) -> None:
    def names(cls: type) -> list[str]:
        return sorted(name for name in vars(cls) if not name.startswith("_"))

    assert names(AsyncControlCalls) == names(ControlCalls)

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            control = client.control
            assert len((await control.buckets()).buckets) == 2
            async with aclosing(control.watch_load(0.25, details=True)) as events:
                assert (await anext(events)).load.num_running == 1
            assert await control.abort_all() == await control.abort_tenant("red") == 0
            assert await control.flush_prefix_cache() == 5
            assert json.loads((await control.dump_state()).json)["state"] == "serving"
            with pytest.raises(CallError, match="wanted one of"):
                await control.set_log_level(pb.LOG_LEVEL_UNSPECIFIED)
            assert [event.is_drained async for event in control.drain()][-1]

    asyncio.run(main())


def test_flags_that_nobody_reads_are_refused(server: FakeServer, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run(server, "drain", "--grace", "5")
    assert ended.value.code == 2
    assert "did you mean --grace-s?" in capsys.readouterr().err
