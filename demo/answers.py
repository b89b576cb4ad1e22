"""Several chat clients at once: the questions, what each measures, and the summary."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import AsyncClient
from server.client.arguments import CallOptions
from server.text import ChatMessage

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea.",
    "Explain how a CPU cache works in simple terms.",
    "Give me three tips for learning a new language.",
    "Tell a two-sentence story about a lighthouse keeper.",
    "Why is the sky blue?",
    "What should I pack for a weekend in the mountains?",
    "List five uses for an old newspaper.",
)
MAX_NEW_TOKENS = 96
# Of one answer, far beyond what a slow machine needs.
TIMEOUT_S = 600.0

OnText = Callable[[int, str], None]


@dataclass(slots=True)
class Answer:
    """One client's answer and its times, seconds on the monotonic clock."""

    question: str
    started_s: float
    text: str = ""
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def ttft_s(self) -> float:
        """Time from sending the request to the first token."""
        return self.token_times_s[0] - self.started_s

    @property
    def tokens_per_s(self) -> float:
        """Speed after the first token; 0 for an answer of one."""
        duration_s = self.token_times_s[-1] - self.token_times_s[0]
        return (len(self.token_times_s) - 1) / duration_s if duration_s > 0 else 0.0


async def ask_all(target: str, questions: tuple[str, ...], on_text: OnText) -> list[Answer]:
    """Ask every question at the same moment, each over a connection of its own.

    Raises:
        CallError: The server refused.
        RuntimeError: An answer ended in an error.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_ask(target, index, question, on_text))
            for index, question in enumerate(questions)
        ]
    return [task.result() for task in tasks]


async def _ask(target: str, index: int, question: str, on_text: OnText) -> Answer:
    # Greedy: the demo shows the same answers each time.
    params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=0.0)
    options = CallOptions(request_id=f"demo-{index}", timeout_s=TIMEOUT_S)
    answer = Answer(question, started_s=time.monotonic())
    async with AsyncClient(target) as client:
        prompt = (ChatMessage("user", question),)
        async for delta in client.stream(prompt, params, options):
            now_s = time.monotonic()
            answer.token_times_s += [now_s] * len(delta.token_ids)
            answer.text += delta.text
            answer.finish_reason = delta.finish_reason or answer.finish_reason
            if delta.finish_reason is FinishReason.ERROR:
                raise RuntimeError(f"request {options.request_id} failed: {delta.error}")
            on_text(index, delta.text)
    if not answer.token_times_s:
        raise RuntimeError(f"request {options.request_id} got no token")
    return answer


def summary(answers: list[Answer]) -> str:
    """A table with a row for each request and the totals below it."""
    rows = ["request   tokens   TTFT ms   tokens/s   ended by"]
    for index, answer in enumerate(answers):
        reason = answer.finish_reason.value if answer.finish_reason else "-"
        rows.append(
            f"[{index}] {len(answer.token_times_s):12d} {answer.ttft_s * 1000:9.0f} "
            f"{answer.tokens_per_s:10.1f}   {reason}"
        )
    num_tokens = sum(len(answer.token_times_s) for answer in answers)
    begin_s = min(answer.started_s for answer in answers)
    end_s = max(answer.token_times_s[-1] for answer in answers)
    ttfts_ms = [answer.ttft_s * 1000 for answer in answers]
    rows += [
        "",
        f"requests              {len(answers)} at once",
        f"total tokens          {num_tokens} in {end_s - begin_s:.1f} s",
        f"aggregate tokens/s    {num_tokens / (end_s - begin_s):.1f}",
        f"TTFT ms               median {statistics.median(ttfts_ms):.0f}, "
        f"largest {max(ttfts_ms):.0f}",
    ]
    return "\n".join(rows)
