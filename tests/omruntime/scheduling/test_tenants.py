"""Service is counted by weight; absence saves nothing up and pays nothing back."""

from __future__ import annotations

from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.tenants import Tenants
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Request, Sequence


def request_of(tenant: str, weight: float = 1.0) -> Sequence:
    scheduling = Scheduling(tenant=tenant, tenant_weight=weight)
    return Sequence.of(Request("r", (1,), SamplingParams(), scheduling=scheduling), 1)


def test_weights_divide_the_service() -> None:
    tenants = Tenants()
    light, heavy = request_of("a"), request_of("b", weight=4.0)
    tenants.enter(light)
    tenants.enter(heavy)
    tenants.charge(light, 100)
    tenants.charge(heavy, 100)
    assert (tenants.service("a"), tenants.service("b")) == (100, 25)
    tenants.check([light, heavy])


def test_a_newcomer_starts_at_the_least_of_the_active() -> None:
    tenants = Tenants()
    old, new = request_of("a"), request_of("b")
    tenants.enter(old)
    tenants.charge(old, 100)
    tenants.enter(new)
    assert tenants.service("b") == 100


def test_leaving_and_coming_back_forgives_nothing() -> None:
    tenants = Tenants()
    one, greedy = request_of("a"), request_of("b")
    tenants.enter(one)
    tenants.enter(greedy)
    tenants.charge(greedy, 500)
    tenants.leave(greedy)
    tenants.enter(greedy)
    assert tenants.service("b") == 500


def test_idle_tenants_are_forgotten() -> None:
    tenants = Tenants()
    stays = request_of("stays")
    tenants.enter(stays)
    for number in range(100):
        guest = request_of(f"guest {number}")
        tenants.enter(guest)
        tenants.charge(guest, 1)
        tenants.leave(guest)
        tenants.charge(stays, 2)
    assert len(tenants) <= 3
    tenants.leave(stays)
    assert len(tenants) == 0
