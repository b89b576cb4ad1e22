"""The parts of a reply as text-generation-inference has them: tokens, details, events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omruntime.sampling_params import SamplingParams
from server.http.answers import Top, finish_reason_of
from server.http.gateway import Gateway
from server.text import PromptToken, TextDelta

_REASONS = {"length": "length", "stop": "eos_token"}


class TgiParts:
    """Words the parts of one answer.

    Attributes:
        prefix: Stands before the whole text: the prompt, or nothing.
    """

    def __init__(self, gateway: Gateway, params: SamplingParams, prefix: str) -> None:
        self._gateway = gateway
        self.params = params
        self.prefix = prefix

    async def whole(self, answer: TextDelta, has_details: bool) -> dict[str, object]:
        """The whole reply.

        Raises:
            OmError: The answer was cut off.
        """
        ending = self.ending(answer)
        body: dict[str, object] = {"generated_text": self.prefix + answer.text}
        if has_details:
            body["details"] = {
                **ending,
                "best_of_sequences": None,
                "prefill": await self._prefill(answer.prompt_logprobs),
                "tokens": await self.tokens(answer),
                "top_tokens": await self.top_tokens(answer),
            }
        return body

    def ending(self, answer: TextDelta) -> dict[str, object]:
        """Why it ended and how much it took.

        Raises:
            OmError: It was cut off.
        """
        reason = _REASONS[finish_reason_of(answer) or "stop"]
        assert answer.usage is not None
        return {
            "finish_reason": "stop_sequence" if isinstance(answer.matched_stop, str) else reason,
            "generated_tokens": answer.usage.num_output_tokens,
            "seed": self.params.seed,
        }

    async def tokens(self, delta: TextDelta) -> list[dict[str, object]]:
        """One entry for each token; its text is the token's own."""
        pairs = zip(delta.token_ids, delta.logprobs, strict=True)
        return [await self._token(token_id, entry.logprob) for token_id, entry in pairs]

    async def top_tokens(self, delta: TextDelta) -> list[list[dict[str, object]]]:
        """The best of each position, when asked for."""
        if not self.params.logprobs:
            return []
        return [await self._top(entry.top) for entry in delta.logprobs]

    async def _top(self, top: Top) -> list[dict[str, object]]:
        return [await self._token(token_id, logprob) for token_id, logprob in top]

    async def _token(self, token_id: int, logprob: float) -> dict[str, object]:
        return {
            "id": token_id,
            "text": await self._gateway.token_text(token_id),
            "logprob": logprob,
            "special": await self._gateway.is_special(token_id),
        }

    async def _prefill(self, tokens: Iterable[PromptToken]) -> list[dict[str, object]]:
        return [
            {
                "id": token.token_id,
                "text": await self._gateway.token_text(token.token_id),
                "logprob": token.logprob,
            }
            for token in tokens
        ]


@dataclass(slots=True)
class _Event:
    """One token's event, before it goes out."""

    index: int
    token: dict[str, object]
    top_tokens: list[dict[str, object]]
    text: str = ""

    def body(self, whole: str | None, details: object) -> dict[str, object]:
        """A special token has its own text, unless it is the only one to carry the answer's."""
        token = self.token
        if self.text or not token["special"]:
            token = token | {"text": self.text, "special": False}
        return {
            "index": self.index,
            "token": token,
            "top_tokens": self.top_tokens,
            "generated_text": whole,
            "details": details,
        }


class TgiStream:
    """Deltas of one answer -> an event for each token; joined, their texts are the whole text.

    The last event holds the whole text, and each has a token. A stop string may be found only
    behind the last token of its answer, so with stop strings an event waits for the next one.
    """

    def __init__(self, parts: TgiParts, has_details: bool) -> None:
        self._parts = parts
        self._has_details = has_details
        self._num_kept = 1 if parts.params.stop else 0
        self._held: list[_Event] = []
        self._text = ""
        self._num_tokens = 0

    async def accept(self, delta: TextDelta) -> list[dict[str, object]]:
        """The events that may go out.

        Raises:
            OmError: The answer was cut off.
        """
        is_last = finish_reason_of(delta) is not None
        await self._hold(delta)
        num_ready = len(self._held) - (1 if is_last else self._num_kept)
        ready = [event.body(None, None) for event in self._held[:num_ready]]
        self._held = self._held[max(num_ready, 0) :]
        if is_last:
            ready.append(self._last(delta))
        return ready

    async def _hold(self, delta: TextDelta) -> None:
        tops = await self._parts.top_tokens(delta)
        for number, token in enumerate(await self._parts.tokens(delta)):
            self._num_tokens += 1
            self._held.append(_Event(self._num_tokens, token, tops[number] if tops else []))
        if delta.text:
            self._text += delta.text
            plain = [event for event in self._held if not event.token["special"]]
            (plain or self._held)[-1].text += delta.text

    def _last(self, delta: TextDelta) -> dict[str, object]:
        (event,) = self._held
        ending = self._parts.ending(delta) | {"input_length": delta.num_prompt_tokens}
        whole = self._parts.prefix + self._text
        return event.body(whole, ending if self._has_details else None)
