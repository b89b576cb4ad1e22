"""What a build warns of although it goes on."""

from __future__ import annotations

from export.build_warnings import bucket_warnings, generation_warnings
from omruntime.buckets import Bucket, BucketTable, Phase

BUCKETS = [Bucket(Phase.DECODE, batch, 1, 4) for batch in (1, 4, 16)]
BUCKETS += [Bucket(Phase.PREFILL, 1, 16, past) for past in (1, 4)]


def test_buckets_that_no_step_takes_are_named() -> None:
    table = BucketTable(BUCKETS, 16)
    assert not list(bucket_warnings(table, 16, 64))
    (warning,) = bucket_warnings(table, 3, 64)
    assert "1 of 5 buckets are never used within --max-num-seqs 3" in warning
    assert "decode 16x1/4" in warning


def test_settings_of_answers_that_no_default_holds_are_named() -> None:
    """Without a word, greedy answers would differ from transformers' generate."""
    given = {
        "temperature": 0.6,
        "max_new_tokens": 2048,
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [5, 6],
        "stop_strings": [],
        "num_beams": 1,
        "typical_p": 1.0,
        "guidance_scale": None,
    }
    (warning,) = generation_warnings(given)
    assert "generation_config.json" in warning
    assert "no_repeat_ngram_size 3, suppress_tokens [5, 6];" in warning
    for name in ("temperature", "max_new_tokens", "stop_strings", "beams", "typical", "guidance"):
        assert name not in warning
