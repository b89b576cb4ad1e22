from __future__ import annotations

from atc_pipeline.om_weights import WeightReport

MIB = 1 << 20


def test_shared_files_count_once() -> None:
    report = WeightReport.of_files([{"a": 5 * MIB, "b": MIB}, {"a": 5 * MIB, "c": 2 * MIB}])
    assert report.to_plain() == {
        "shared_files": True,
        "stored_bytes": 8 * MIB,
        "separate_bytes": 13 * MIB,
        "saved_bytes": 5 * MIB,
        "duplicate_bytes": MIB,
    }
    assert report.describe() == (
        "weights: 8 MiB shared by 2 programs, which saves 5 MiB against separate copies; "
        "1 MiB differ between programs"
    )


def test_perfect_sharing_has_nothing_to_add() -> None:
    report = WeightReport.of_files([{"a": MIB}, {"a": MIB}])
    assert report.describe().endswith("saves 1 MiB against separate copies")


def test_separate_copies_say_what_they_cost() -> None:
    report = WeightReport.inside([3 * MIB, 4 * MIB])
    assert "each with its own copy, which costs 3 MiB of device memory" in report.describe()
    assert report.to_plain()["saved_bytes"] == 0


def test_one_program_shares_with_nobody() -> None:
    assert WeightReport.inside([3 * MIB]).describe() == "weights: 3 MiB in one program"
