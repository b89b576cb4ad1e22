"""Token ids in, token ids out, in process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omruntime import LLM, EngineSettings, FinishReason, SamplingParams
from omruntime.errors import (
    ConfigError,
    NotBuiltInError,
    OutOfDeviceMemoryError,
    RequestError,
)
from tests.forked_child import said_by_forked_child
from tests.omruntime.toy_model import toy_answer

GREEDY = SamplingParams(temperature=0, max_new_tokens=8, ignore_eos=True)


def test_answers_come_in_the_order_of_the_prompts(toy_bundle: Path) -> None:
    prompts = [(i % 50 + 1, 3) for i in range(70)]
    with LLM(toy_bundle, EngineSettings(max_queued_requests=20)) as llm:
        outputs = llm.generate(prompts, GREEDY, progress=False)
    assert [o.token_ids for o in outputs] == [toy_answer(p, 8) for p in prompts]
    assert {o.finish_reason for o in outputs} == {FinishReason.LENGTH}


def test_several_answers_to_a_prompt_differ_and_repeat(toy_bundle: Path) -> None:
    """BL-28: a seeded request with n answers."""
    params = SamplingParams(temperature=50.0, seed=3, n=4, max_new_tokens=12, ignore_eos=True)
    with LLM(toy_bundle) as llm:
        first = llm.generate([(1, 2, 3, 4, 5)], params, progress=False)
        again = llm.generate([(9,), (1, 2, 3, 4, 5)], params, progress=False)
    assert [(o.prompt_index, o.index) for o in first] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert len({o.token_ids for o in first}) == 4
    assert [o.token_ids for o in again[4:]] == [o.token_ids for o in first]


def test_one_wrong_prompt_refuses_the_call_and_the_next_one_works(toy_bundle: Path) -> None:
    with LLM(toy_bundle) as llm:
        with pytest.raises(RequestError, match="64"):
            llm.generate([(1,), (1,) * 64], GREEDY, progress=False)
        with pytest.raises(RequestError, match="2 prompts and 1 params"):
            llm.generate([(1,), (2,)], [GREEDY], progress=False)
        with pytest.raises(RequestError, match="prompts is 1, wanted a list with token ids"):
            llm.generate(1, GREEDY, progress=False)  # type: ignore[arg-type]
        assert llm.generate([(1,)], GREEDY, progress=False)[0].token_ids == toy_answer((1,), 8)


def test_params_that_are_left_out_are_the_bundles_own(toy_bundle: Path) -> None:
    with LLM(toy_bundle) as llm:
        (output,) = llm.generate([(1,)], progress=False)
    assert output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_stop_strings_are_refused_as_they_need_text(toy_bundle: Path) -> None:
    with (
        LLM(toy_bundle) as llm,
        pytest.raises(NotBuiltInError, match=r"server\.LLM"),
    ):
        llm.generate([(1,)], SamplingParams(stop=("x",)), progress=False)


@pytest.mark.parametrize("prompt", [[-1], [61], [1.5], ["a"], "text"])
def test_a_prompt_that_is_no_token_ids_is_refused(toy_bundle: Path, prompt: list[int]) -> None:
    with LLM(toy_bundle) as llm, pytest.raises(RequestError, match=r"token id"):
        llm.generate([prompt], GREEDY, progress=False)


def test_a_forked_child_is_refused_and_the_parent_goes_on(toy_bundle: Path) -> None:
    """It has none of the device's threads."""
    with LLM(toy_bundle) as llm:
        said = said_by_forked_child(lambda: llm.generate([(1,)], GREEDY, progress=False))
        assert said.startswith("RequestError: this LLM was opened by process")
        assert said_by_forked_child(llm.close) == "None"
        assert llm.generate([(1,)], GREEDY, progress=False)[0].token_ids == toy_answer((1,), 8)


def test_a_closed_llm_says_so_and_closes_once(toy_bundle: Path) -> None:
    llm = LLM(toy_bundle)
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="closed"):
        llm.generate([(1,)], GREEDY, progress=False)


def test_a_pool_beyond_the_memory_is_refused(toy_bundle: Path) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match="--num-blocks"):
        LLM(toy_bundle, EngineSettings(num_blocks=(1 << 31) - 1))


def test_a_process_for_the_device_is_refused_as_there_is_none(toy_bundle: Path) -> None:
    with pytest.raises(ConfigError, match=r"isolate_device is set.*server\.LLM"):
        LLM(toy_bundle, EngineSettings(isolate_device=True))


def test_a_second_call_at_once_is_refused_and_the_first_goes_on(toy_bundle: Path) -> None:
    """Both would step one engine and take each other's answers."""
    begun, may_go = threading.Event(), threading.Event()
    answers: list[tuple[int, ...]] = []

    def prompts() -> Iterator[tuple[int, ...]]:
        begun.set()
        may_go.wait()
        yield (1, 2)

    with LLM(toy_bundle) as llm:

        def first() -> None:
            answers.extend(o.token_ids for o in llm.generate(prompts(), GREEDY, progress=False))

        thread = threading.Thread(target=first)
        thread.start()
        begun.wait()
        try:
            with pytest.raises(RequestError, match=r"answers another call.*server\.LLM"):
                llm.generate([(1,)], GREEDY, progress=False)
            with pytest.raises(RequestError, match=r"answers another call"):
                llm.close()
        finally:
            may_go.set()
            thread.join()
        assert answers == [toy_answer((1, 2), 8)]
        assert llm.generate([(1,)], GREEDY, progress=False)[0].token_ids == toy_answer((1,), 8)


@pytest.mark.parametrize("params", [3, [{}], {}, "greedy"])
def test_params_of_another_type_are_refused(toy_bundle: Path, params: object) -> None:
    with (
        LLM(toy_bundle) as llm,
        pytest.raises(RequestError, match=r"params (is|holds) .*, wanted Sampl"),
    ):
        llm.generate([(1,)], params, progress=False)  # type: ignore[arg-type]
