from __future__ import annotations

from tests.fuzz_om import run


def test_damaged_files_end_in_facts_or_an_error() -> None:
    tally = run(count=2000, seed=7)
    assert tally.crashes == []
    assert tally.num_hangs == 0
    # Both ends are reached, or the damage would test nothing.
    assert min(tally.num_read, tally.num_refused) > 100
