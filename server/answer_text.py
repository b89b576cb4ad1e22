"""AnswerText: the token deltas of one answer -> its text deltas."""

from __future__ import annotations

from collections.abc import Collection

from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.detokenizer import Detokenizer
from server.stop_strings import StopMatcher
from server.text import TextDelta, TextWatch, Usage
from server.tokenizer import Tokenizer


class AnswerText:
    """Detokenises one answer, cuts it at stop strings and counts its tokens.

    Attributes:
        finished: Whether the terminal delta was given out.
        stopped: Whether a stop string or a watch ended the text; the engine need not go on.
    """

    def __init__(
        self,
        index: int,
        num_prompt_tokens: int,
        params: SamplingParams,
        tokenizer: Tokenizer,
        has_text: bool = True,
        eos_token_ids: Collection[int] = (),
        watch: TextWatch | None = None,
    ) -> None:
        """Begin one answer; without text nothing is decoded, and no stop string found.

        Args:
            eos_token_ids: What a constrained answer may end with; any other last token has
                completed it and belongs to its text.
            watch: Ends the text where it says that it is complete.
        """
        self.finished = False
        self._index = index
        self._num_prompt_tokens = num_prompt_tokens
        self._params = params
        self._tokenizer = tokenizer
        self._has_text = has_text
        self._end_token_ids = frozenset((*eos_token_ids, *params.stop_token_ids))
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self._stop = StopMatcher(params.stop, params.include_stop)
        self._watch = watch
        self._matched: str | None = None
        self._is_complete = False
        self._num_output_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string or a watch ended the text; the engine need not go on."""
        return self._matched is not None or self._is_complete

    def accept(self, delta: TokenDelta) -> TextDelta | None:
        """The text of the next tokens; None when there is nothing to tell.

        Tokens after the one that completed a stop string are dropped. The terminal delta comes
        with the engine's last one, which has the timings and proves that the sequence is gone.
        """
        if self.stopped:
            return None if delta.finish_reason is None else self._text_delta("", 0, delta)
        text, num_tokens = self._read_tokens(delta)
        if delta.finish_reason is not None and not self.stopped:
            text += self._search(self._detokenizer.flush())
        if delta.finish_reason is not None and not self.stopped:
            text += self._stop.flush()
        return self._text_delta(text, num_tokens, delta)

    def _read_tokens(self, delta: TokenDelta) -> tuple[str, int]:
        """The text that may go out and the number of tokens up to the stop string."""
        if not self._has_text:
            self._num_output_tokens += len(delta.token_ids)
            return "", len(delta.token_ids)
        pieces = []
        for count, token_id in enumerate(delta.token_ids, start=1):
            self._num_output_tokens += 1
            ends = delta.finish_reason is FinishReason.STOP and count == len(delta.token_ids)
            if not ends or self._shows_end(token_id):
                pieces.append(self._search(self._detokenizer.push(token_id)))
            if self.stopped:
                return "".join(pieces), count
        return "".join(pieces), len(delta.token_ids)

    def _shows_end(self, token_id: int) -> bool:
        """Whether the token that ended the answer belongs to its text.

        A special one does when special tokens are wanted, any other when stops are, or when it
        completed what a constraint asks for.
        """
        if self._params.constraint is not None and token_id not in self._end_token_ids:
            return True
        return self._params.include_stop or self._tokenizer.is_special(token_id)

    def _search(self, text: str) -> str:
        armed = self._num_output_tokens >= self._params.min_new_tokens
        searched = self._stop.push(text, armed)
        self._matched = searched.matched
        self._is_complete = self._watch is not None and self._watch.push(searched.text)
        return searched.text

    def _text_delta(self, text: str, num_tokens: int, delta: TokenDelta) -> TextDelta:
        token_ids, logprobs = delta.token_ids[:num_tokens], delta.logprobs[:num_tokens]
        if delta.finish_reason is None:
            return TextDelta(
                self._index,
                text,
                token_ids,
                logprobs,
                num_prompt_tokens=self._num_prompt_tokens,
            )
        self.finished = True
        return TextDelta(
            self._index,
            text,
            token_ids,
            logprobs,
            finish_reason=FinishReason.STOP if self.stopped else delta.finish_reason,
            matched_stop=self._matched_stop(delta),
            error="" if self.stopped else delta.error,
            is_refusal=delta.is_refusal,
            usage=Usage(self._num_prompt_tokens, self._num_output_tokens, delta.num_cached_tokens),
            timings=delta.timings,
            num_prompt_tokens=self._num_prompt_tokens,
        )

    def _matched_stop(self, delta: TokenDelta) -> str | int | None:
        if self.stopped:
            return self._matched
        if delta.finish_reason is FinishReason.STOP and delta.token_ids:
            last = delta.token_ids[-1]
            return last if last in self._params.stop_token_ids else None
        return None
