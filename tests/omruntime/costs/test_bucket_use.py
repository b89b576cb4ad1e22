"""What ran is counted by bucket, and the rest of its places is padding."""

from __future__ import annotations

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.bucket_use import BucketUse
from omruntime.costs.cost_table import CostTable

DECODE = Bucket(Phase.DECODE, 4, 1, 2)
PREFILL = Bucket(Phase.PREFILL, 2, 16, 0)
TABLE = BucketTable([PREFILL, DECODE], 16)


def test_what_a_bucket_had_places_for_and_did_not_compute_is_padding() -> None:
    use = BucketUse(TABLE)
    use.ran(PREFILL, 1, 10)
    use.ran(PREFILL, 2, 32)
    reports = {report.bucket: report for report in use.reports(CostTable(TABLE, 16))}
    full = reports[PREFILL]
    assert (full.num_steps, full.num_rows, full.num_tokens) == (2, 3, 42)
    assert (full.num_padded_rows, full.num_padded_tokens) == (1, 22)
    assert reports[DECODE].num_padded_tokens == 0
    assert (use.num_tokens, use.num_places) == (42, 64)


def test_a_switch_is_a_step_of_another_bucket_than_the_one_before() -> None:
    use = BucketUse(TABLE)
    for bucket in (PREFILL, PREFILL, DECODE, DECODE, PREFILL):
        use.ran(bucket, 1, 1)
    assert use.num_switches == 2


def test_reports_tell_predictions_and_warm_up() -> None:
    costs = CostTable(TABLE, 16)
    costs.measure(DECODE, 0.25)
    use = BucketUse(TABLE)
    use.warmed(DECODE, 0.5)
    use.warmed(DECODE, 0.25)
    reports = {report.bucket: report for report in use.reports(costs)}
    assert (reports[DECODE].predicted_s, reports[DECODE].is_measured) == (0.25, True)
    assert reports[DECODE].warm_up_s == 0.75
    assert (reports[PREFILL].is_measured, reports[PREFILL].warm_up_s) == (False, 0.0)
    # By work, as the table has them.
    assert [r.bucket for r in use.reports(costs)] == [DECODE, PREFILL]
