from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from atc_pipeline.atc.jobs import JobSettings, Layout
from atc_pipeline.building_folder import building_folder
from atc_pipeline.emit import EMITTED, read_emitted, require_nothing_compiled, write_emitted
from omruntime.errors import BundleError, ConfigError
from tests.atc_pipeline.fake_ascend import fake_jobs, fake_tool
from tests.atc_pipeline.tiny_step_graph import write_draft

MAKE = 'echo om >$output.om; mkdir weight; echo w >weight/weight_1; printf "%s\\n" "$@" >argv'


@pytest.fixture
def emitted(tmp_path: Path) -> Path:
    folder = tmp_path / "emitted"
    write_draft(folder)
    write_emitted(folder, JobSettings(extra_flags=(("log", "info"),)), is_simulated=False)
    return folder


def compile_in(folder: Path, body: str, *names: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user would, with a stand-in for `atc` and nothing else of ours."""
    (folder.parent / "bin").mkdir(exist_ok=True)
    tool = fake_tool(folder.parent / "bin", body)
    path = f"{Path(tool.command[0]).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["sh", f"{folder.name}/compile.sh", *names],
        cwd=folder.parent,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_runs_every_program_with_the_same_words_as_a_build(emitted: Path) -> None:
    found = compile_in(emitted, MAKE)
    assert found.returncode == 0, found.stderr
    assert f"--from-compiled {emitted}" in found.stdout
    for job in read_emitted(emitted).jobs:
        folder = emitted / "programs" / job.name
        assert (folder / f"{job.name}.om").exists()
        argv = (folder / "argv").read_text().splitlines()
        assert argv == [f"--{name}={value}" for name, value in job.options.flags().items()]
        assert "--log=info" in argv


def test_programs_can_be_compiled_one_by_one(emitted: Path) -> None:
    found = compile_in(emitted, MAKE, "decode")
    assert found.returncode == 0
    assert "not compiled here yet: prefill;" in found.stdout
    assert "now: export-om" not in found.stdout
    assert [p.parent.name for p in emitted.glob("programs/*/*.om")] == ["decode"]
    found = compile_in(emitted, MAKE, "prefill")
    assert found.returncode == 0
    assert "now: export-om" in found.stdout
    assert len(list(emitted.glob("programs/*/*.om"))) == 2


def test_a_failure_ends_the_script_with_the_end_of_the_log(emitted: Path) -> None:
    found = compile_in(emitted, "echo E10035: one gear; exit 255")
    assert found.returncode == 4
    assert "E10035: one gear" in found.stderr
    assert "prefill.om: failed with exit code 255" in found.stderr


def test_success_without_an_om_is_a_failure(emitted: Path) -> None:
    assert compile_in(emitted, "true").returncode == 4


def test_a_file_that_changed_on_the_way_is_noticed(emitted: Path) -> None:
    with (emitted / "programs" / "step.weights").open("ab") as file:
        file.write(b"x")
    found = compile_in(emitted, MAKE)
    assert found.returncode != 0
    assert "step.weights" in found.stdout + found.stderr


def test_a_missing_compiler_is_named(emitted: Path) -> None:
    found = subprocess.run(
        ["sh", str(emitted / "compile.sh")],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "source set_env.sh" in found.stderr


def test_a_path_that_atc_refuses_is_named(emitted: Path) -> None:
    odd = emitted.with_name("my bundle#1")
    emitted.rename(odd)
    found = compile_in(odd, MAKE)
    assert found.returncode == 2
    assert "letters, digits" in found.stderr


def test_the_folder_reads_back(emitted: Path) -> None:
    found = read_emitted(emitted)
    assert [job.name for job in found.jobs] == [job.name for job in fake_jobs()]
    assert not found.is_simulated


def test_a_simulated_folder_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "emitted"
    write_draft(folder)
    write_emitted(folder, JobSettings(Layout.UNIFIED), is_simulated=True)
    script = (folder / "compile.sh").read_text()
    assert "# SIMULATED" in script
    assert "atc_pipeline.simatc" in script
    assert read_emitted(folder).is_simulated


def test_equal_input_gives_equal_bytes(emitted: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    write_draft(second)
    write_emitted(second, JobSettings(extra_flags=(("log", "info"),)), is_simulated=False)
    for path in emitted.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(emitted)).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emit_version": 9}, "emit_version is 9"),
        ({"layout": "round"}, "round"),
        ({"extra_flags": "log"}, "extra_flags"),
        ({"extra_flags": [["log", "loud"]]}, "E10010"),
    ],
)
def test_a_changed_index_is_refused(
    emitted: Path, changes: dict[str, object], message: str
) -> None:
    path = emitted / "emit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BundleError, match=message):
        read_emitted(emitted)


def test_a_folder_that_was_not_emitted(tmp_path: Path, tiny_bundle: Path) -> None:
    for folder in (tmp_path / "absent", tiny_bundle):
        with pytest.raises(BundleError, match=r"draft\.json.*--emit"):
            read_emitted(folder)


def test_a_name_cannot_smuggle_commands_into_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "emitted"
    write_draft(folder)
    draft = json.loads((folder / "draft.json").read_text())
    draft["model"]["name"] = "x\ntouch smuggled\n'$(touch smuggled)`touch smuggled`"
    (folder / "draft.json").write_text(json.dumps(draft))
    write_emitted(folder, JobSettings(), is_simulated=False)
    assert compile_in(folder, MAKE).returncode == 0
    assert not list(tmp_path.rglob("smuggled"))


def test_an_emitted_folder_replaces_only_its_like(emitted: Path, tiny_bundle: Path) -> None:
    with building_folder(emitted, EMITTED) as building:
        write_draft(building.path / "x")
        building.publish()
    with (
        pytest.raises(ConfigError, match="no emitted folder"),
        building_folder(tiny_bundle, EMITTED),
    ):
        pass


def test_compiled_programs_are_not_replaced(emitted: Path) -> None:
    require_nothing_compiled(emitted)
    assert compile_in(emitted, MAKE, "decode").returncode == 0
    with pytest.raises(ConfigError, match=r"holds compiled programs .*--from-compiled"):
        require_nothing_compiled(emitted)


def test_the_container_script_wants_an_image(emitted: Path, tmp_path: Path) -> None:
    script = ["sh", str(emitted / "compile-in-container.sh"), "decode"]
    environ = {"PATH": os.environ["PATH"], "DOCKER": "echo"}
    found = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "IMAGE" in found.stderr
    environ["IMAGE"] = "cann:8.5.1-310p"
    found = subprocess.run(script, env=environ, capture_output=True, text=True, check=True)
    assert f"{emitted}:/work" in found.stdout
    assert found.stdout.strip().endswith("compile.sh decode")


def test_a_simulated_script_says_so_and_wants_the_python_of_omserve(tmp_path: Path) -> None:
    folder = tmp_path / "emitted"
    write_draft(folder)
    write_emitted(folder, JobSettings(Layout.UNIFIED), is_simulated=True)
    assert not (folder / "compile-in-container.sh").exists()
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").write_text("#!/bin/sh\nexit 1\n")
    (bare / "python3").chmod(0o755)
    found = subprocess.run(
        ["sh", str(folder / "compile.sh")],
        env={"PATH": f"{bare}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "SIMULATION" in found.stderr
    assert "PATH has no omserve[export]" in found.stderr
