"""What is said arrives as it was, errors above all."""

from __future__ import annotations

import inspect
import pickle

import pytest

from omruntime import errors
from omruntime.errors import CallError, DeviceError, FieldError, OmError
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import Request
from omruntime.worker.messages import CarriedError, Submit

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, OmError) and cls.__module__ == errors.__name__
]


def carried(error: BaseException) -> OmError:
    return pickle.loads(pickle.dumps(CarriedError.of(error))).restore()


def make(cls: type[OmError]) -> OmError:
    """An error of a class, whatever its constructor takes before the message."""
    parameters = inspect.signature(cls).parameters.values() if "__init__" in vars(cls) else ()
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    return cls(*("other" for _ in required[1:]), "the message")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_class_crosses_as_itself(cls: type[OmError]) -> None:
    error = carried(make(cls))
    assert type(error) is cls
    assert str(error) == "the message"
    assert vars(error) == vars(make(cls))


def test_what_an_error_holds_crosses_with_it() -> None:
    field, call = carried(FieldError("top_k", "text")), carried(CallError("UNAVAILABLE", "text"))
    assert isinstance(field, FieldError)
    assert isinstance(call, CallError)
    assert (field.param, call.code) == ("top_k", "UNAVAILABLE")


def test_a_foreign_error_becomes_a_device_error_that_names_it() -> None:
    error = carried(ZeroDivisionError("division by zero"))
    assert type(error) is DeviceError
    assert "ZeroDivisionError: division by zero" in str(error)


def test_a_request_crosses_with_all_its_wishes() -> None:
    request = Request(
        "id\n🦙",
        tuple(range(1000)),
        SamplingParams(logit_bias={3: -100.0}, stop_token_ids=(1, 2), seed=(1 << 63) - 1),
        cache_salt="salt",
        leader_id="other",
        scheduling=Scheduling(Urgency.HIGH, tenant="t", deadline=1.5),
    )
    submit = Submit(7, request, 0.25)
    assert pickle.loads(pickle.dumps(submit)) == submit
