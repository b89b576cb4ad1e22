"""EngineLoop: the device process between loading and its end: take commands, step, report."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from omruntime.engine import Engine
from omruntime.engine_state import EngineState
from omruntime.errors import OmError
from omruntime.outputs import TokenDelta
from omruntime.sampling.token_matcher import Grammar
from omruntime.step_deltas import EngineOutput
from omruntime.worker.messages import (
    Answer,
    Ask,
    Cancel,
    CarriedError,
    Report,
    Stop,
    Submit,
    ToWorker,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose constraint is compiled or refused by now."""

    submit: Submit
    grammar: Future[Grammar]


class EngineLoop:
    """Drives one engine by messages; for the thread that owns the engine."""

    def __init__(
        self,
        engine: Engine,
        send: Callable[[Report], None],
        commands: queue.SimpleQueue[ToWorker | Prepared],
    ) -> None:
        self._engine = engine
        self._send = send
        self._commands = commands
        self._tickets: dict[str, int] = {}
        self._answers: list[Answer] = []
        self._deltas: list[tuple[int, TokenDelta]] = []
        self._replies: list[tuple[int, int | EngineState]] = []
        self._is_stopped = False

    def run(self) -> None:
        """Serve until `Stop`.

        Raises:
            OSError: The serving process is gone.
        """
        while True:
            self._take_commands()
            if self._is_stopped:
                return
            if self._answers or self._deltas or self._replies:
                self._report([])
            self._report(self._engine.step())

    def end_all(self) -> None:
        """Abort what is live, and report the last deltas."""
        self._report(self._engine.abort_all())

    def _take_commands(self) -> None:
        """Run all queued commands; waits for one while there is nothing else to do."""
        wait = not self._engine.has_work
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if isinstance(command, Submit):
                self._submit(command)
            elif isinstance(command, Prepared):
                self._submit(command.submit, command.grammar)
            elif isinstance(command, Cancel):
                aborted = self._engine.abort(command.request_id, command.reason)
                if aborted is not None:
                    self._deltas.append(self._ticketed(aborted))
            elif isinstance(command, Ask):
                reply = getattr(self._engine, command.question.value)()
                self._replies.append((command.ticket, reply))
            elif isinstance(command, Stop):
                self._is_stopped = True
                return

    def _submit(self, command: Submit, grammar: Future[Grammar] | None = None) -> None:
        try:
            if grammar is None and self._prepare(command):
                return
            self._engine.add(command.request, command.submitted_at, grammar)
        except OmError as error:
            self._answers.append(Answer(command.ticket, CarriedError.of(error)))
            return
        self._tickets[command.request.request_id] = command.ticket
        self._answers.append(Answer(command.ticket, None))

    def _prepare(self, command: Submit) -> bool:
        """Whether the request comes back as `Prepared`."""
        grammar = self._engine.prepare(command.request)
        if grammar is None:
            return False
        grammar.add_done_callback(lambda done: self._commands.put(Prepared(command, done)))
        return True

    def _report(self, outputs: list[EngineOutput]) -> None:
        tokens: list[tuple[int, int]] = []
        for request_id, delta in outputs:
            if _is_plain(delta):
                tokens.append((self._tickets[request_id], delta.token_ids[0]))
            else:
                self._deltas.append(self._ticketed((request_id, delta)))
        report = Report(
            load=self._engine.load(),
            counters=self._engine.counters(),
            is_busy=self._engine.has_work,
            answers=tuple(self._answers),
            tokens=tuple(tokens),
            deltas=tuple(self._deltas),
            replies=tuple(self._replies),
            device_error=self._engine.take_device_error() or "",
        )
        self._answers, self._deltas, self._replies = [], [], []
        self._send(report)

    def _ticketed(self, output: EngineOutput) -> tuple[int, TokenDelta]:
        request_id, delta = output
        if delta.finish_reason is None:
            return self._tickets[request_id], delta
        return self._tickets.pop(request_id), delta


def _is_plain(delta: TokenDelta) -> bool:
    has_more = delta.logprobs or delta.prompt_logprobs or delta.finish_reason is not None
    return len(delta.token_ids) == 1 and not has_more
