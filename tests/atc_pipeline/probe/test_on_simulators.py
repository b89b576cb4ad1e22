"""The probes over simatc and simacl: a simulation, which says nothing about a card.

It shows that the probes come to an end, make only calls that are defined, give everything back,
and can tell right from wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from atc_pipeline.atc.find import SIMATC, find_atc
from atc_pipeline.probe import gear_probes, memory_probes, operator_probes
from atc_pipeline.probe.acl_calls import Acl
from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.card import Card
from atc_pipeline.probe.compiler import Compiler
from atc_pipeline.probe.outcome import Outcome, Result
from atc_pipeline.probe.run import run_probes
from atc_pipeline.probe.table import PROBES
from omruntime.device.simacl import SimulatedCard, Simulation, UndefinedBehaviourError
from omruntime.errors import DeviceError

MIB = 1 << 20


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(SimulatedCard(num_devices=2, memory_bytes=64 * MIB))


@pytest.fixture(scope="module")
def bench(simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    compiler = Compiler(find_atc(SIMATC, {}), "Ascend310P3", tmp_path_factory.mktemp("probes"))
    with Card(cast(Acl, simulation.module), 1) as card:
        yield Bench(compiler, card, simulation.set_external_weight_address)
    assert simulation.leaks == ()
    assert simulation.is_finalized


def test_the_whole_table(bench: Bench, simulation: Simulation) -> None:
    # This one asks for what the vendor forbids, which the simulator turns into an exception.
    probes = [probe for probe in PROBES if probe.probe_id != "unaligned-copy"]
    report = run_probes(bench, lambda _: None, probes)
    results = {probe.probe_id: outcome for probe, outcome in report.outcomes}
    unanswered = {i: o.seen for i, o in results.items() if o.result is Result.NO_ANSWER}
    assert set(unanswered) == {"large-pool"}
    assert "of device memory" in unanswered["large-pool"]
    assert {i: o.seen for i, o in results.items() if o.result is Result.REFUTED} == {}
    assert report.is_simulated
    assert report.exit_code == 1
    assert simulation.used_bytes == (0, 0)


def test_an_unaligned_copy_is_what_the_simulator_forbids(bench: Bench) -> None:
    with pytest.raises(UndefinedBehaviourError, match="aligned to 64"):
        memory_probes.unaligned_copy(bench)


def test_another_chip_is_told(bench: Bench) -> None:
    other = replace(bench, compiler=replace(bench.compiler, soc_version="Ascend310P1"))
    assert memory_probes.soc_name(other).result is Result.REFUTED


@pytest.mark.parametrize(
    "probe",
    [
        operator_probes.npu_rms_norm,
        operator_probes.npu_rotary_mul,
        operator_probes.int32_inputs,
        operator_probes.float32_islands,
        gear_probes.gear_packing,
        memory_probes.pool_written_between_runs,
    ],
)
def test_wrong_numbers_refute(
    probe: Callable[[Bench], Outcome], bench: Bench, simulation: Simulation
) -> None:
    """The card gives back other bytes than the program made."""

    class Wrong:
        def __getattr__(self, name: str) -> object:
            return getattr(simulation.module, name)

        class util:  # noqa: N801
            bytes_to_ptr = staticmethod(simulation.module.util.bytes_to_ptr)

            @staticmethod
            def ptr_to_bytes(ptr: int, size: int) -> bytes:
                data: bytes = simulation.module.util.ptr_to_bytes(ptr, size)
                return bytes(byte ^ 0x41 for byte in data)

    bench.card.acl, kept = cast(Acl, Wrong()), bench.card.acl
    try:
        assert probe(bench).result is Result.REFUTED
    finally:
        bench.card.acl = kept


def test_a_card_that_cannot_be_opened_gives_everything_back() -> None:
    simulation = Simulation()
    with pytest.raises(DeviceError, match=r"acl.rt.set_device gave 107001"):
        Card(cast(Acl, simulation.module), 5)
    assert simulation.is_finalized
    assert simulation.leaks == ()


def test_without_the_function_for_external_weights(bench: Bench, tmp_path: Path) -> None:
    def absent(handle: int, name: str, address: int, size: int) -> int:
        raise DeviceError("no aclmdlSetExternalWeightAddress: undefined symbol")

    probe = next(p for p in PROBES if p.probe_id == "external-weight-address")
    report = run_probes(replace(bench, set_external_weight=absent), lambda _: None, [probe])
    assert report.outcomes[0][1].result is Result.NO_ANSWER
    assert "undefined symbol" in report.outcomes[0][1].seen
