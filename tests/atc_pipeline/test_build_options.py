from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from atc_pipeline.cli import main, parse_arguments
from atc_pipeline.commands.build_ascend import ascend_build, job_settings
from atc_pipeline.commands.build_options import (
    _USED_BY,
    BuildKind,
    accepting_flags,
    find_build_kind,
)
from omruntime.errors import AtcError, ConfigError

CPU = ("ckpt", "--target", "cpu", "--output", "o")
ASCEND = ("ckpt", "--target", "Ascend310P3", "--output", "o")
EMIT = ("ckpt", "--target", "Ascend310P3", "--emit", "e")
FROM = ("--from-compiled", "e", "--output", "o")


def parse(*words: str) -> argparse.Namespace:
    return parse_arguments(["build", *words])


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (CPU, BuildKind.CPU),
        (ASCEND, BuildKind.ASCEND),
        (EMIT, BuildKind.EMIT),
        (FROM, BuildKind.FROM_COMPILED),
        ((*ASCEND, "--jobs", "2", "--layout", "static", "--no-cache"), BuildKind.ASCEND),
        ((*EMIT, "--atc", "simatc", "--num-blocks", "9", "--strict"), BuildKind.EMIT),
        ((*FROM, "--strict", "--keep-onnx"), BuildKind.FROM_COMPILED),
    ],
)
def test_kinds(words: tuple[str, ...], kind: BuildKind) -> None:
    assert find_build_kind(parse(*words)) is kind


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*CPU, "--num-blocks", "9"), "--num-blocks: not used by a build for cpu"),
        ((*CPU, "--layout", "static", "--atc", "x"), "--layout, --atc: not used by"),
        ((*CPU, "--strict"), "--strict: not used by a build for cpu"),
        ((*EMIT, "--jobs", "1"), "--jobs: not used by --emit"),
        ((*EMIT, "--output", "o"), "--output: not used by --emit"),
        ((*EMIT, "--keep-intermediates"), "--keep-intermediates: not used by --emit"),
        ((*FROM, "--target", "cpu"), "--target: not used by --from-compiled"),
        ((*FROM, "--emit", "x"), "--emit: not used by --from-compiled"),
        (("ckpt", *FROM), "checkpoint: not used by --from-compiled"),
        ((*FROM, "--num-threads", "0"), "--num-threads: not used by --from-compiled"),
        (("ckpt", "--output", "o", "--weights", "int8"), "^--target: missing, .* --target is cpu"),
        (("--target", "cpu"), "checkpoint, --output: missing"),
        (("--from-compiled", "e"), "--output: missing, wanted for --from-compiled"),
        (("ckpt", "--target", "cpu", "--emit", "e"), "--emit: a bundle for cpu"),
        ((*ASCEND, "--no-cache", "--cache-dir", "c"), "--no-cache and --cache-dir exclude"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_by_name(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        find_build_kind(parse(*words))
    assert main(["build", *words]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_every_flag_says_which_builds_use_it() -> None:
    known = {name.lstrip("-").replace("-", "_") for name in _USED_BY}
    assert known == vars(parse()).keys() - {"command", "command_name"}


def test_wrong_values_are_refused_before_the_export() -> None:
    for words, message in (
        (("--jobs", "0"), "--jobs is 0"),
        (("--atc-timeout-s", "0"), "--atc-timeout-s is 0"),
        (("--atc-timeout-s", "nan"), "--atc-timeout-s is nan"),
        (("--atc-flag", "log=loud"), "E10010"),
        (("--atc-flag", "no_such=1"), "unknown flag"),
        (("--atc", "/no/such/atc"), "--atc is '/no/such/atc'"),
    ):
        with pytest.raises(ConfigError, match=message):
            ascend_build(parse(*ASCEND, "--atc", "simatc", *words))


def test_an_emitted_folder_is_simulated_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_settings(parse(*EMIT))[1] is False
    assert job_settings(parse(*EMIT, "--atc", "simatc"))[1] is True
    monkeypatch.setenv("OMSERVE_ATC", "simatc")
    assert job_settings(parse(*EMIT))[1] is True
    with pytest.raises(ConfigError, match="leaves the compiler to the other machine"):
        job_settings(parse(*EMIT, "--atc", "/opt/atc"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMSERVE_CACHE_DIR", str(tmp_path))
    simulated = (*ASCEND, "--atc", "simatc")
    assert ascend_build(parse(*simulated)).cache_folder == tmp_path / "atc"
    assert ascend_build(parse(*simulated, "--no-cache")).cache_folder is None
    assert ascend_build(parse(*simulated, "--cache-dir", "c")).cache_folder == Path("c")


def test_flags_that_shaped_the_bundle() -> None:
    words = ("--layout", "static", "--allow-unproven", "--atc-flag", "log=info", "--jobs", "2")
    more = ("--keep-onnx", "--buckets", "/somewhere/gears.json")
    assert accepting_flags(parse(*ASCEND, *words, *more)) == (
        "--allow-unproven",
        "--keep-onnx",
        "--layout",
        "static",
        "--atc-flag",
        "log=info",
        "--buckets",
        "gears.json",
    )


@pytest.mark.usefixtures("without_compiler")
def test_a_build_without_a_compiler_is_shown_the_other_way() -> None:
    with pytest.raises(AtcError, match=r"(?s)atc was not found.*--emit DIR instead of --output"):
        ascend_build(parse(*ASCEND))
