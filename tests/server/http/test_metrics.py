"""GET /metrics: what was served is counted, whichever way it ended."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from tests.server.http.serving import TOKENIZER, Serving, serving
from tests.server.scripted_engine import one_by_one


def says_abc(_request: Request) -> list[TokenDelta]:
    return one_by_one([*TOKENIZER.encode_text("abc"), 2], FinishReason.STOP)


def scrape(server: Serving) -> dict[tuple[str, str], float]:
    """Each sample by name and its one label's value."""
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def complete(server: Serving, **body: object) -> int:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=20).status_code


def test_requests_are_counted_by_how_they_ended() -> None:
    with serving(says_abc) as server:
        assert complete(server, prompt="xy", n=2) == 200
        assert complete(server, prompt="x" * 600) == 400
        found = scrape(server)
    assert found["omserve_requests_finished_total", "stop"] == 2
    assert found["omserve_requests_refused_total", "PromptTooLong"] == 1
    assert found["omserve_prompt_tokens_total", ""] == 2
    assert found["omserve_output_tokens_total", ""] == 8
    assert found["omserve_inter_token_seconds_count", ""] == 6
    assert found["omserve_time_to_first_token_seconds_count", ""] == 2
    assert found["omserve_request_seconds_sum", ""] == pytest.approx(
        sum(found[f"omserve_{part}_seconds_sum", ""] for part in ("queue", "prefill", "decode"))
    )


def test_the_engine_is_read_at_each_scrape() -> None:
    with serving(says_abc) as server:
        found = scrape(server)
    assert found["omserve_kv_blocks_total", ""] == 16
    assert found["omserve_requests_running", ""] == 1
    assert found["omserve_preemptions_total", ""] == 7
    assert found["omserve_kv_blocks", "held"] == 4
    assert found["omserve_kv_blocks", "empty"] == 12
    assert found["omserve_padded_tokens_total", ""] == 20
    assert found["omserve_bucket_switches_total", ""] == 3
    assert found["omserve_warm_up_seconds", ""] == 1.5
    assert found["omserve_bucket_steps_total", "42decode1"] == 10
    assert found["omserve_bucket_padded_tokens_total", "10prefill16"] == 8


def test_a_simulation_is_told_beside_its_times() -> None:
    for device, told in (("sim:0", 1), ("cpu", 0)):
        with serving(says_abc, engine=EngineSettings(device=device)) as server:
            assert scrape(server)["omserve_simulated", ""] == told


def test_a_histogram_is_cumulative_as_prometheus_has_it() -> None:
    with serving(says_abc) as server:
        assert complete(server, prompt="xy") == 200
        found = scrape(server)
    assert found["omserve_queue_seconds_bucket", "0.1"] == 0
    assert found["omserve_queue_seconds_bucket", "0.25"] == 1  # the bound is inclusive
    assert found["omserve_queue_seconds_bucket", "120.0"] == 1
    assert found["omserve_queue_seconds_bucket", "+Inf"] == 1
    assert found["omserve_queue_seconds_sum", ""] == 0.25


def test_what_is_refused_before_the_engine_is_counted_too() -> None:
    with serving(says_abc, ready=False) as server:
        assert complete(server, prompt="xy") == 503
        assert scrape(server)["omserve_requests_refused_total", "NotReady"] == 1
