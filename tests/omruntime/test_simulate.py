"""The simulation repeats itself, loses no token, and shows what the policies are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from omruntime.buckets import Phase
from omruntime.errors import ConfigError
from omruntime.scheduling.phase_policy import Targets
from omruntime.simulate.__main__ import main
from omruntime.simulate.machine import bundle_machine, example_machine
from omruntime.simulate.replay import Replayed, policies, replay, saturation
from omruntime.simulate.report import figures_of
from omruntime.simulate.trace import TracedRequest, at_rate, read_trace, synthetic_trace

TARGETS = Targets()
POLICIES = ["measured cost", "smallest covering bucket", "first come first served"]


def run(policy: str, load: float, num_requests: int = 40) -> Replayed:
    machine = example_machine()
    options = policies(machine.table, machine.costs, TARGETS)[policy]
    trace = synthetic_trace(num_requests, 512, seed=3)
    return replay(at_rate(trace, load), machine, options)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_every_token_in_order(policy: str) -> None:
    trace = synthetic_trace(40, 512, seed=3)
    result = run(policy, load=2.0)
    for traced, measured in zip(trace, result.requests, strict=True):
        assert len(measured.token_times) == traced.num_output_tokens
        assert measured.ttft_s > 0
        assert all(gap > 0 for gap in measured.gaps_s)
    assert result.num_useful <= result.num_padded


def test_equal_arguments_give_equal_figures(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in ("1", "1", "2"):
        assert main(["--requests", "3", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert all(name in outputs[0] for name in POLICIES)
    assert outputs[0].count("\n") == 2 + 4 * 3


def test_measured_cost_pads_less_and_stalls_less() -> None:
    ours, other = (figures_of(run(p, 2.0, 80), TARGETS) for p in POLICIES[::2])
    assert ours.waste < other.waste
    assert ours.itl_p99_s < other.itl_p99_s
    assert ours.tokens_a_second > 0.95 * other.tokens_a_second


def test_a_machine_is_not_faster_than_saturated() -> None:
    machine = example_machine()
    options = policies(machine.table, machine.costs, TARGETS)["measured cost"]
    trace = synthetic_trace(40, 512, seed=3)
    most = saturation(trace, machine, options)
    result = replay(at_rate(trace, 3 * most), machine, options)
    assert len(trace) / result.duration_s <= most * 1.05


def test_arrivals_are_stretched_to_the_wanted_rate() -> None:
    trace = at_rate(synthetic_trace(500, 512, seed=0), 4.0)
    assert max(r.arrival_s for r in trace) == pytest.approx(125.0)
    assert all(r.num_prompt_tokens + r.num_output_tokens <= 512 for r in trace)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_file_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival,prompt,output\n2.5,7,3\n0,5,2\n")
    assert read_trace(path, 64) == [TracedRequest(0.0, 5, 2), TracedRequest(2.5, 7, 3)]
    assert main(["--trace", str(path)]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival,prompt\n1,2\n", "wanted columns arrival, prompt, output"),
        ("arrival,prompt,output\n1,x,2\n", "line 2"),
        ("arrival,prompt,output\n0,1,1\n-1,1,1\n", "line 3"),
        ("arrival,prompt,output\nnan,1,1\n", "line 2"),
        ("arrival,prompt,output\n0,60,5\n", "65 tokens"),
        ("arrival,prompt,output\n0,1,0\n", "at least one token each"),
        ("arrival,prompt,output\n0,1,1\n", "at least 2"),
        ("arrival,prompt,output\n0,1,1\n0,1,1\n", "arrivals at 0 alone"),
    ],
)
def test_a_wrong_trace_is_refused(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=words):
        read_trace(path, 64)
    assert main(["--trace", str(tmp_path / "missing.csv")]) == 2
    assert "cannot read the trace" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-5", "0", "inf", "nan"])
def test_a_wrong_target_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--itl-target-ms={value}"])
    assert f"--itl-target-ms is {value}, wanted a number above 0" in capsys.readouterr().err


def test_a_bundle_without_its_costs_is_refused(toy_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no file of measured costs"):
        bundle_machine(toy_bundle, path)


def test_the_example_covers_every_step() -> None:
    machine = example_machine()
    machine.table.require_cover(machine.limits.max_num_seqs, machine.limits.max_model_len)
    assert machine.costs.is_complete
    assert machine.table.max_batch(Phase.DECODE) == machine.limits.max_num_seqs
