"""LLM: a toy bundle in this process, text in and text out."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from omruntime.errors import BundleError, PreconditionError, RequestError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from omruntime.settings import EngineSettings
from server import LLM, ChatMessage
from tests.forked_child import said_by_forked_child
from tests.omruntime.toy_model import toy_answer, write_toy_bundle
from tests.server.tiny_tokenizers import letters_backend, tokenizer_of, write_tokenizer

SETTINGS = EngineSettings(num_threads=1, num_blocks=100)
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8, ignore_eos=True)
TOKENIZER = tokenizer_of(letters_backend())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy model with a tokenizer, without a chat template."""
    folder = write_toy_bundle(tmp_path_factory.mktemp("toy") / "bundle")
    write_tokenizer(folder / "tokenizer", letters_backend())
    return folder


@pytest.fixture(scope="module")
def llm(bundle: Path) -> Iterator[LLM]:
    with LLM(bundle, SETTINGS) as opened:
        yield opened


def test_score_gives_what_the_model_thinks_of_each_continuation(llm: LLM) -> None:
    prompt = TOKENIZER.encode_text("abc")
    own = toy_answer(prompt, 5)
    other = tuple((token + 1) % 50 for token in own)
    good, bad = llm.score(prompt, [own, other])
    assert good.is_greedy
    assert not bad.is_greedy
    assert good.logprob > bad.logprob
    assert [token.token_id for token in good.tokens] == list(own)
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    (whole,) = llm.generate([(*prompt, *own)], params, progress=False)
    assert whole.answers[0].prompt_logprobs[len(prompt) :] == good.tokens
    (text,) = llm.score("abc", ["d"], top_logprobs=2)
    assert len(text.tokens[0].top) == 2


def test_a_wrong_continuation_is_refused(llm: LLM) -> None:
    for continuations, words in (
        ("d", "into a list"),
        ([], "0 continuations"),
        ([["d"]], "wanted"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.score("abc", continuations)  # type: ignore[arg-type]


def expected_text(prompt: str, num_tokens: int = 8) -> str:
    return TOKENIZER.decode(toy_answer(TOKENIZER.encode_text(prompt), num_tokens))


def test_prompts_are_answered_in_order(llm: LLM) -> None:
    prompts = [f"Prompt{i}" for i in range(40)]
    outputs = llm.generate(prompts, GREEDY, progress=False)
    assert [output.text for output in outputs] == [expected_text(p) for p in prompts]
    assert outputs[3].prompt_token_ids == TOKENIZER.encode_text("Prompt3")
    assert {o.answers[0].finish_reason for o in outputs} == {FinishReason.LENGTH}


def test_one_text_and_token_ids_are_accepted(llm: LLM) -> None:
    (output,) = llm.generate("Hello", GREEDY, progress=False)
    (same,) = llm.generate([list(TOKENIZER.encode_text("Hello"))], GREEDY, progress=False)
    assert output.text == same.text == expected_text("Hello")


def test_each_prompt_can_have_its_own_params(llm: LLM) -> None:
    params = [dataclasses.replace(GREEDY, max_new_tokens=n) for n in (2, 5)]
    outputs = llm.generate(["a", "b"], params, progress=False)
    assert [len(output.answers[0].token_ids) for output in outputs] == [2, 5]


def test_seeded_answers_repeat_in_any_batch(llm: LLM) -> None:
    """BL-28: alone, in company and as the first of n."""
    params = SamplingParams(temperature=2.0, seed=42, max_new_tokens=16, ignore_eos=True)
    (alone,) = llm.generate("Same", params, progress=False)
    company = llm.generate(["Other"] * 15 + ["Same"], params, progress=False)
    (both,) = llm.generate("Same", dataclasses.replace(params, n=2), progress=False)
    assert company[-1].text == alone.text == both.answers[0].text


def test_a_stop_string_ends_an_answer(llm: LLM) -> None:
    whole = expected_text("Stop")
    params = dataclasses.replace(GREEDY, stop=(whole[3:5],))
    (output,) = llm.generate("Stop", params, progress=False)
    assert output.text == whole[: whole.index(whole[3:5])]
    assert output.answers[0].finish_reason is FinishReason.STOP


def test_a_wrong_prompt_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="token id 61"):
        llm.generate([[1], [61]], GREEDY, progress=False)
    with pytest.raises(RequestError, match="2 prompts and 1 params"):
        llm.generate(["a", "b"], [GREEDY], progress=False)
    with pytest.raises(RequestError, match="put the ids into a list"):
        llm.generate([1, 2], GREEDY, progress=False)  # type: ignore[list-item]
    with pytest.raises(RequestError, match="prompts is 5, wanted a text or a list"):
        llm.generate(5, GREEDY, progress=False)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="messages is 5, wanted a list of messages"):
        llm.chat(5, GREEDY, progress=False)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"params is \{'n': 2\}, wanted SamplingParams"):
        llm.generate("a", {"n": 2}, progress=False)  # type: ignore[arg-type]
    assert llm.generate([], GREEDY, progress=False) == []


def test_chat_needs_a_template(llm: LLM) -> None:
    """BL-09 d."""
    with pytest.raises(PreconditionError, match="chat template"):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, progress=False)


def test_it_works_inside_of_a_running_event_loop(llm: LLM) -> None:
    """As in a notebook."""

    async def cell() -> str:
        return llm.generate("Cell", GREEDY, progress=False)[0].text

    assert asyncio.run(cell()) == expected_text("Cell")


def test_progress_is_drawn_on_standard_error(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""


def test_conversations_come_alone_or_as_a_list(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chatty"
    folder.mkdir()
    for name in ("bundle.json", "programs"):
        (folder / name).symlink_to(bundle / name)
    write_tokenizer(folder / "tokenizer", letters_backend())
    (folder / "tokenizer" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}{{ mood }}"
    )
    chat = [{"role": "user", "content": "Hi"}, ChatMessage("assistant", "Yo")]
    with LLM(folder, SETTINGS) as llm:
        (one,) = llm.chat(chat, GREEDY, progress=False)
        two = llm.chat(
            [chat, chat[:1]], GREEDY, template_arguments={"mood": "Glad"}, progress=False
        )
        with pytest.raises(RequestError, match="role and content"):
            llm.chat([{"role": "user"}], GREEDY, progress=False)
    assert one.text == expected_text("userHiassistantYo")
    assert [o.text for o in two] == [
        expected_text(p + "Glad") for p in ("userHiassistantYo", "userHi")
    ]


def test_closing_twice_is_harmless(bundle: Path) -> None:
    llm = LLM(bundle, SETTINGS)
    llm.close()
    llm.close()


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"bundle\.json"):
        LLM(tmp_path)


def test_a_forked_child_is_refused_and_the_parent_goes_on(llm: LLM) -> None:
    """It has none of the threads, so that it would wait for ever."""
    said = said_by_forked_child(lambda: llm.generate("a", GREEDY, progress=False))
    assert said.startswith("RequestError: this LLM was opened by process")
    assert "spawn" in said
    assert said_by_forked_child(llm.close) == "None"
    (output,) = llm.generate("a", GREEDY, progress=False)
    assert output.text == expected_text("a")
