"""The closed set of messages between the serving process and its device process.

Owns what is said; `channel.py` owns how it travels. A ticket is the serving process's number of
one submitted request: ids may be used again at once, tickets never are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omruntime import errors
from omruntime.engine_state import EngineState
from omruntime.errors import DeviceError, OmError
from omruntime.outputs import EngineCounters, EngineLoad, TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class CarriedError:
    """An exception on its way through the channel.

    Pickling an exception calls its class with its `args`, which fails for every class whose
    constructor takes something else.

    Attributes:
        cls: Name of a class in `omruntime.errors`.
        text: Its message.
        attributes: What else it holds, such as `FieldError.param`.
    """

    cls: str
    text: str
    attributes: dict[str, object]

    @staticmethod
    def of(error: BaseException) -> CarriedError:
        """Pack an error; one that is not ours becomes a DeviceError that names its class."""
        if not isinstance(error, OmError):
            text = f"the device process failed: {type(error).__name__}: {error}"
            return CarriedError(DeviceError.__name__, text, {})
        return CarriedError(type(error).__name__, str(error), dict(vars(error)))

    def restore(self) -> OmError:
        """The error again, of its own class."""
        cls = getattr(errors, self.cls)
        assert issubclass(cls, OmError), f"{self.cls} is no error of ours"
        error: OmError = cls.__new__(cls, self.text)
        error.__dict__.update(self.attributes)
        return error


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what to load.

    Attributes:
        manifest_digest: Of the bundle that the serving process tokenises for; another one in
            the same folder is refused.
        log_level: Least `logging` level that is worth sending.
        is_restart: Whether a worker served this bundle before.
    """

    bundle: Path
    manifest_digest: str
    settings: EngineSettings
    log_level: int
    is_restart: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """A request; answered by an `Answer` in the next `Report`.

    Attributes:
        submitted_at: Seconds of `time.monotonic`, which is one clock for all processes of a
            Linux machine (CLOCK_MONOTONIC), as are the deadlines inside of `request`.
    """

    ticket: int
    request: Request
    submitted_at: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the request that is live under an id by now, if there is one."""

    request_id: str
    reason: FinishReason


class Question(Enum):
    """What the engine can be asked between two steps: the name of the method that answers."""

    FLUSH = "flush_prefix_cache"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the engine something; answered by `Report.replies`."""

    ticket: int
    question: Question


@dataclass(frozen=True, slots=True)
class LogFrom:
    """Log from a level on; taken at once, also during a step."""

    level: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Abort what is live, each with a last delta, release the device and end."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record of the device process, for the log of the serving process.

    Attributes:
        traceback: Formatted; empty when there is none.
    """

    logger: str
    level: int
    text: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage of loading.

    Attributes:
        runs: Whether the device runs something until the next message, which may take no longer
            than a step; else it may take as long as reading all of the bundle.
    """

    line: str
    runs: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Loaded and warm."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Loading or warming up failed; the process ends."""

    error: CarriedError


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a submitted request was accepted; `refusal` is None when it was."""

    ticket: int
    refusal: CarriedError | None


@dataclass(frozen=True, slots=True)
class Report:
    """All that is new after commands were taken or a step was run, in one message.

    Attributes:
        answers: Come before the deltas.
        tokens: (ticket, token id) of every delta that is one token and nothing else; most are,
            and a pair costs a tenth of a `TokenDelta` to send.
        deltas: (ticket, delta) of the others, at most one for each ticket.
        is_busy: Whether a step begins after this message.
        replies: (ticket, what was answered) of every `Ask`.
        device_error: Why the step failed; empty when it did not.
    """

    load: EngineLoad
    counters: EngineCounters
    is_busy: bool
    answers: tuple[Answer, ...] = ()
    tokens: tuple[tuple[int, int], ...] = ()
    deltas: tuple[tuple[int, TokenDelta], ...] = ()
    replies: tuple[tuple[int, int | EngineState], ...] = ()
    device_error: str = ""


ToWorker = Start | Submit | Cancel | Ask | LogFrom | Stop
FromWorker = LogLine | Progress | Ready | LoadFailed | Report
