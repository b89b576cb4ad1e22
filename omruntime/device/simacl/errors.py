"""How the simulator says that a program is wrong.

Owns the simulator's own exceptions and the error codes that it returns. They stand here and not
in `omruntime/errors.py` because the product never raises them on hardware.
"""

from __future__ import annotations

from enum import IntEnum


class UndefinedBehaviourError(BaseException):
    """The program did what on hardware is undefined or silently wrong.

    No `Exception`, so that no handler for ordinary failures hides it: on hardware the process
    would go on with wrong numbers, or end.
    """


class NotSimulatedError(NotImplementedError):
    """The call exists in pyACL, and this simulator does not offer it."""


class Code(IntEnum):
    """The error codes that the simulator returns.

    Source: hicann/runtime include/external/acl/error_codes/rt_error_codes.h, acl_base_rt.h;
    hicann/ge inc/external/ge_common/ge_error_codes.h.
    """

    INVALID_PARAM = 100000
    REPEAT_INITIALIZE = 100002
    REPEAT_FINALIZE = 100037
    RT_PARAM_INVALID = 107000
    RT_INVALID_DEVICEID = 107001
    RT_CONTEXT_NULL = 107002
    RT_STREAM_CONTEXT = 107003
    RT_EVENT_TIMESTAMP_INVALID = 107006
    RT_THREAD_SUBSCRIBE = 107012
    GE_PARAM_INVALID = 145000
    GE_EXEC_NOT_INIT = 145001
    GE_EXEC_MODEL_PATH_INVALID = 145002
    GE_EXEC_MODEL_ID_INVALID = 145003
    GE_DYNAMIC_INPUT_ADDR_INVALID = 145011
    GE_DYNAMIC_INPUT_LENGTH_INVALID = 145012
    GE_DYNAMIC_BATCH_SIZE_INVALID = 145013
    RT_FEATURE_NOT_SUPPORT = 207000
    RT_MEMORY_ALLOCATION = 207001
    RT_NO_EVENT_RESOURCE = 207007
    RT_NO_STREAM_RESOURCE = 207008
    GE_FAILURE = 500002
    RT_CONTEXT_RELEASE_ERROR = 507007
    RT_REPORT_TIMEOUT = 507012
    RT_AICORE_EXCEPTION = 507015
    RT_STREAM_SYNC_TIMEOUT = 507046
    RT_EVENT_SYNC_TIMEOUT = 507047


class Refusal(Exception):  # noqa: N818, it never leaves the simulator
    """A call is answered with an error code; `text` is what get_recent_err_msg will say."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
