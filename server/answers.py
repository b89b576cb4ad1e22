"""From a stream of deltas to answers: the guarantees of a stream, joining and slicing.

Owns what every front end promises: one terminal delta for each answer once a request was
accepted, an error before that, and one log line at the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from omruntime.errors import OmError
from omruntime.sequence import FinishReason
from server.logs import log_finished
from server.request_tally import RequestTally
from server.seams import RequestObserver, TextGeneratorLike
from server.security.callers import as_callers
from server.security.redaction import public_text, without_paths
from server.text import TextDelta, TextRequest


async def terminated_deltas(
    generator: TextGeneratorLike,
    request: TextRequest,
    observer: RequestObserver,
) -> AsyncGenerator[TextDelta, None]:
    """The request's deltas, each answer ending with exactly one terminal delta.

    Closing it early aborts the request. A request counts as accepted with its first delta.

    With API keys the request is its caller's, see `callers.as_callers`.

    Raises:
        OmError: Before the first delta; later the error becomes terminal deltas.
    """
    tally = RequestTally(request.params.n)
    accepted = False
    failure = "the stream ended without a reason; the server's log may know more"
    try:
        try:
            own = as_callers(request)
            async with aclosing(generator.stream(own)) as deltas:
                async for delta in deltas:
                    accepted = True
                    delta = _taken(delta, tally, observer)
                    if tally.is_complete:
                        break
                    yield delta
            # The very last delta leaves when the request is over, so that whoever gets it may
            # use the request id again at once.
            if tally.is_complete:
                yield delta
        except OmError as error:
            if not accepted:
                observer.refused(error)
                raise
            failure = public_text(error)
        for index in range(request.params.n):
            if index not in tally.ends:
                end = TextDelta(index, "", (), finish_reason=FinishReason.ERROR, error=failure)
                tally.count(end)
                yield end
    finally:
        if accepted:
            log_finished(tally)
            observer.finished(tally)


def _taken(delta: TextDelta, tally: RequestTally, observer: RequestObserver) -> TextDelta:
    """A delta as its reader gets it, counted."""
    if delta.error:
        delta = replace(delta, error=without_paths(delta.error))
    arrival = tally.count(delta)
    if arrival is not None:
        observer.arrived(arrival)
    return delta


async def final_deltas(deltas: AsyncIterable[TextDelta]) -> AsyncGenerator[TextDelta, None]:
    """Each answer as one delta that holds all of it, when it has ended."""
    parts: dict[int, list[TextDelta]] = {}
    async for delta in deltas:
        parts.setdefault(delta.index, []).append(delta)
        if delta.finish_reason is not None:
            yield joined(parts.pop(delta.index))


def join_deltas(deltas: Iterable[TextDelta]) -> tuple[TextDelta, ...]:
    """Each answer as one delta that holds all of it, by index."""
    return tuple(map(joined, sort_deltas(deltas)))


def sort_deltas(deltas: Iterable[TextDelta]) -> tuple[list[TextDelta], ...]:
    """The deltas of each answer, by index."""
    by_index: dict[int, list[TextDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return tuple(by_index[index] for index in sorted(by_index))


def joined(parts: Sequence[TextDelta]) -> TextDelta:
    """One answer's deltas as one."""
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        prompt_logprobs=tuple(entry for part in parts for entry in part.prompt_logprobs),
    )


def slice_delta(delta: TextDelta, max_tokens: int) -> Iterator[TextDelta]:
    """The same delta in pieces of at most `max_tokens` of prompt and of answer each.

    The last one alone can be terminal. Text goes with it, since where it divides among the
    tokens is not known.
    """
    while len(delta.prompt_logprobs) > max_tokens:
        yield TextDelta(delta.index, "", (), prompt_logprobs=delta.prompt_logprobs[:max_tokens])
        delta = replace(delta, prompt_logprobs=delta.prompt_logprobs[max_tokens:])
    start = 0
    while len(delta.token_ids) - start > max_tokens:
        end = start + max_tokens
        yield TextDelta(
            delta.index,
            "",
            delta.token_ids[start:end],
            logprobs=delta.logprobs[start:end],
            prompt_logprobs=delta.prompt_logprobs,
        )
        delta = replace(delta, prompt_logprobs=())
        start = end
    yield replace(delta, token_ids=delta.token_ids[start:], logprobs=delta.logprobs[start:])
