"""ChatSession: the conversation loop of `om-client chat`."""

from __future__ import annotations

import sys

from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions
from server.status import exit_code_of
from server.terminal.endings import why_not_whole
from server.terminal.terminal_client import TerminalClient
from server.text import ChatMessage

EXIT_COMMAND = "/exit"
HELP_COMMAND = "/help"
HELP = f"{EXIT_COMMAND} or end of input ends, Ctrl-C cancels an answer"


class ChatSession:
    """Reads turns from standard input and streams the answers to standard output.

    At a terminal a failed turn is told and forgotten, and the conversation goes on. Otherwise the
    first failure ends it, since a script's next lines build on the answer.
    """

    def __init__(
        self,
        client: TerminalClient,
        params: SamplingParams,
        options: CallOptions,
        system: str | None,
    ) -> None:
        self._client = client
        self._params = params
        self._options = options
        self._history = [] if system is None else [ChatMessage("system", system)]
        self._is_terminal = sys.stdin.isatty()

    def run(self) -> int:
        """Talk until /exit or the end of input; returns the exit code."""
        if self._is_terminal:
            _tell(HELP)
        while (line := self._read_line()) is not None:
            if line.strip() == EXIT_COMMAND:
                break
            if line.strip() == HELP_COMMAND:
                _tell(HELP)
                continue
            if not line.strip():
                continue
            code = self._take_turn(line)
            if code and not self._is_terminal:
                return code
        return 0

    def _read_line(self) -> str | None:
        """The next turn; None at the end of input, or when Ctrl-C is pressed before one."""
        try:
            if self._is_terminal:
                return input("> ")
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return None

    def _take_turn(self, line: str) -> int:
        """Send one turn and print its answer; a turn without an answer leaves no trace."""
        self._history.append(ChatMessage("user", line))
        parts: list[str] = []
        code = 0
        try:
            code = self._stream_answer(parts)
        except CallError as error:
            _tell(f"{error.code}: {error}")
            code = exit_code_of(error)
        except KeyboardInterrupt:
            _tell("answer cancelled")
            code = 0 if self._is_terminal else 130
        if parts and not code:
            self._history.append(ChatMessage("assistant", "".join(parts)))
        else:
            self._history.pop()
        return code

    def _stream_answer(self, parts: list[str]) -> int:
        try:
            for delta in self._client.stream(self._history, self._params, self._options):
                # Only the first answer is part of the conversation.
                if delta.index == 0:
                    parts.append(delta.text)
                    sys.stdout.write(delta.text)
                    sys.stdout.flush()
                if delta.finish_reason is not None and (reason := why_not_whole(delta)):
                    _tell(reason)
                    return 1
            return 0
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()


def _tell(text: str) -> None:
    sys.stderr.write(f"om-client: {text}".replace("\n", " ") + "\n")
    sys.stderr.flush()
