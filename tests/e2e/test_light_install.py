"""The installed wheel: serving without torch or a compiler, and the client alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.processes import ROOT

HEAVY = ("torch", "transformers", "onnx", "onnxscript", "accelerate", "gguf", "safetensors")
START_TIMEOUT_S = 240.0


QUIET = ("--quiet", "--disable-pip-version-check", "--no-compile")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=folder)
    (found,) = folder.glob("omserve-*.whl")
    return found


def installed_in(folder: Path, wanted: str) -> Path:
    """The `bin` folder of a fresh environment that holds a requirement."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip(folder / "venv" / "bin", "install", *QUIET, wanted)
    return folder / "venv" / "bin"


def pip(environment: Path, *arguments: str) -> bytes:
    """What this environment's pip prints of its work on another one."""
    # pip takes for installed what it finds in PYTHONPATH.
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [sys.executable, "-m", "pip", "--python", str(environment / "python"), *arguments]
    return subprocess.run(command, check=True, env=own, stdout=subprocess.PIPE).stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the extra `cpu`."""
    return installed_in(tmp_path_factory.mktemp("light"), f"{wheel}[cpu]")


@pytest.fixture(scope="module")
def client_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what a plain install brings."""
    return installed_in(tmp_path_factory.mktemp("client"), str(wheel))


@pytest.fixture(scope="module")
def without_compiler() -> dict[str, str]:
    """An environment whose PATH holds nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMSERVE_", "PYTHON"))}
    return kept | {"PATH": ""}


@pytest.fixture(scope="module")
def port(
    installed: Path,
    smollm2_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    without_compiler: dict[str, str],
) -> Iterator[str]:
    """The port of an installed `om-serve`."""
    folder = tmp_path_factory.mktemp("serving")
    port_file, log = folder / "port", folder / "log"
    flags = ["--grpc-port", "0", "--port-file", str(port_file)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(installed / "om-serve"), str(smollm2_bundle), *flags],
            cwd=folder,
            env=without_compiler,
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not port_file.exists():
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    yield port_file.read_text().strip()
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, log.read_text()


def names_in(environment: Path) -> set[str]:
    """All that is installed."""
    listed = pip(environment, "list", "--format", "json")
    return {package["name"].lower() for package in json.loads(listed)}


def test_nothing_heavy_is_installed(installed: Path) -> None:
    names = names_in(installed)
    assert "omserve" in names
    assert not names.intersection(HEAVY)


def test_the_wheel_has_the_files_of_the_live_page(installed: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in (ROOT / "server/http/page").iterdir())
    code = (
        "from importlib import util; import json, pathlib; "
        "folder = pathlib.Path(util.find_spec('server').origin).parent / 'http/page'; "
        "print(json.dumps(sorted(path.name for path in folder.iterdir())))"
    )
    listed = subprocess.run(
        [str(installed / "python"), "-c", code], check=True, capture_output=True, cwd=tmp_path
    )
    assert json.loads(listed.stdout) == names


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler, so no native kernels")
def test_the_wheel_has_the_compiled_kernels(
    installed: Path, tmp_path: Path, without_compiler: dict[str, str]
) -> None:
    code = "from omruntime.device import open_device; print(open_device('native').name)"
    named = subprocess.run(
        [str(installed / "python"), "-c", code],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=without_compiler,
    )
    assert named.stdout == b"native\n"


def test_a_plain_install_is_the_client_alone(
    client_alone: Path, port: str, tmp_path: Path, without_compiler: dict[str, str]
) -> None:
    """Neither the server's libraries nor numpy; both clients, their sessions and om-client work."""
    allowed = {"omserve", "grpcio", "grpcio-health-checking", "googleapis-common-protos"}
    allowed |= {"protobuf", "typing-extensions", "typing_extensions"}
    assert names_in(client_alone) <= allowed
    target = f"127.0.0.1:{port}"
    for name in ("blocking.py", "with_asyncio.py", "session.py"):
        done = subprocess.run(
            [str(client_alone / "python"), str(ROOT / "examples" / "python" / name), target],
            cwd=tmp_path,
            env=without_compiler,
            check=False,
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    flags = ["--target", target, "--prompt", "The capital of France is", "--max-new-tokens", "2"]
    done = subprocess.run(
        [str(client_alone / "om-client"), "generate", *flags, "--temperature", "0"],
        cwd=tmp_path,
        env=without_compiler,
        check=True,
        capture_output=True,
    )
    assert b"Paris" in done.stdout
    load = ["--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "2"]
    done = subprocess.run(
        [str(client_alone / "om-client"), "bench", "--target", target, *load],
        cwd=tmp_path,
        env=without_compiler,
        check=True,
        capture_output=True,
    )
    assert b"2 ok, 0 rejected, 0 failed" in done.stdout


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["om-serve", "bundle"], "cpu"),
        (["om-client", "bench", "--backend", "in-process", "--bundle", "b"], "cpu"),
        (["export-om", "build", "model.gguf", "--output", "b", "--target", "cpu"], "export"),
    ],
)
def test_what_a_plain_install_lacks_is_said(
    client_alone: Path,
    tmp_path: Path,
    without_compiler: dict[str, str],
    command: list[str],
    extra: str,
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    done = subprocess.run(
        [str(client_alone / command[0]), *command[1:]],
        cwd=tmp_path,
        env=without_compiler,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"'.[{extra}]'".encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_installed_server_answers_the_installed_client(
    installed: Path, port: str, tmp_path: Path, without_compiler: dict[str, str]
) -> None:
    wait = "from server.client import Client; Client({!r}).wait_ready(200)"
    target = f"127.0.0.1:{port}"
    environment = {"cwd": tmp_path, "env": without_compiler, "check": True}
    subprocess.run([str(installed / "python"), "-c", wait.format(target)], **environment)
    flags = ["--prompt", "The capital of France is", "--max-new-tokens", "2", "--temperature", "0"]
    done = subprocess.run(
        [str(installed / "om-client"), "generate", "--target", target, *flags, "--json"],
        capture_output=True,
        **environment,
    )
    assert json.loads(done.stdout)["token_ids"][0] == 7042


def test_export_om_says_what_is_missing(
    installed: Path, tmp_path: Path, without_compiler: dict[str, str]
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    done = subprocess.run(
        [
            str(installed / "export-om"),
            "build",
            "model.gguf",
            "--output",
            "b",
            "--target",
            "cpu",
        ],
        cwd=tmp_path,
        env=without_compiler,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"'.[export]'" in done.stderr
    assert b"Traceback" not in done.stderr
