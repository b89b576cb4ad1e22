from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from atc_pipeline.verify import verify_bundle
from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError
from omruntime.manifest import Manifest


def verify(bundle: Path) -> None:
    verify_bundle(bundle, progress=lambda stage: None)


def rewrite(bundle: Path, **changes: object) -> None:
    manifest = dataclasses.replace(Manifest.read(bundle), **changes)  # type: ignore[arg-type]
    (bundle / "bundle.json").write_text(manifest.to_json())


def test_a_fresh_bundle_verifies(tiny_bundle: Path) -> None:
    verified = verify_bundle(tiny_bundle, progress=lambda stage: None)
    assert verified.num_files == 5
    assert verified.total_bytes == sum(e.size_bytes for e in verified.manifest.files)


def test_one_flipped_bit_is_found(tiny_bundle: Path) -> None:
    path = tiny_bundle / "programs" / "step.weights"
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"programs/step\.weights: sha256"):
        verify(tiny_bundle)


def test_every_problem_is_listed(tiny_bundle: Path) -> None:
    (tiny_bundle / "programs" / "step.onnx").unlink()
    (tiny_bundle / "programs" / "step.weights").write_bytes(b"short")
    (tiny_bundle / "tokenizer" / "extra.txt").touch()
    with pytest.raises(BundleError) as caught:
        verify(tiny_bundle)
    text = str(caught.value)
    assert "programs/step.onnx: missing" in text
    assert "programs/step.weights: 5 bytes, the manifest says 8192" in text
    assert "tokenizer/extra.txt: not in the manifest" in text


def test_missing_cover_is_found(tiny_bundle: Path) -> None:
    (program,) = Manifest.read(tiny_bundle).programs
    only_decode = dataclasses.replace(program, buckets=(Bucket(Phase.DECODE, 2, 1, 4),))
    rewrite(tiny_bundle, programs=(only_decode,))
    with pytest.raises(BundleError, match="no prefill bucket"):
        verify(tiny_bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes_per_block": 1}, "bytes_per_block is 1, the model's facts give 8192"),
        ({"dtype": "float17"}, "float17"),
    ],
)
def test_wrong_kv_facts_are_found(
    tiny_bundle: Path, change: dict[str, object], message: str
) -> None:
    kv = dataclasses.replace(Manifest.read(tiny_bundle).kv, **change)  # type: ignore[arg-type]
    rewrite(tiny_bundle, kv=kv)
    with pytest.raises(BundleError, match=message):
        verify(tiny_bundle)


@pytest.mark.parametrize("diff", [1.0, float("nan")])
def test_a_parity_beyond_its_tolerance_is_found(tiny_bundle: Path, diff: float) -> None:
    parity = dataclasses.replace(Manifest.read(tiny_bundle).parity, max_abs_logits_diff=diff)
    rewrite(tiny_bundle, parity=parity)
    with pytest.raises(BundleError, match="parity"):
        verify(tiny_bundle)


def test_a_file_listed_twice_is_found(tiny_bundle: Path) -> None:
    files = Manifest.read(tiny_bundle).files
    rewrite(tiny_bundle, files=(*files, files[0]))
    with pytest.raises(BundleError, match="twice"):
        verify(tiny_bundle)


def test_no_bundle_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot read"):
        verify(tmp_path / "absent")
