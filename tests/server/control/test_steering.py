"""Who may steer: operators with keys, people of the machine without, strangers never."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.errors import CallError, ConfigError
from server.client import Client
from server.client.security import ClientSecurity
from server.lifecycle import Lifecycle
from server.pb import control_pb2 as pb
from server.security.access import Access, open_access
from server.security.key_file import read_key_file
from server.security.keys_command import run_keys
from server.text import TextDelta
from tests.server.key_files import add_key
from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

STEERING: dict[str, Callable[[Client], object]] = {
    "drain": lambda c: list(c.control.drain()),
    "flush": lambda c: c.control.flush_prefix_cache(),
    "log level": lambda c: c.control.set_log_level(pb.LOG_LEVEL_INFO),
    "dump": lambda c: c.control.dump_state(),
    "abort all": lambda c: c.control.abort_all(),
    "abort another tenant": lambda c: c.control.abort_tenant("blue"),
}
each_call = pytest.mark.parametrize("call", STEERING.values(), ids=STEERING.keys())


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """The root logger as it was."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    for name in ("red", "blue"):
        add_key(keys, f"k-{name}", name)
    add_key(keys, "k-op", "op", operator=True)
    with FakeServer(settings_of(api_keys=keys)) as server:
        server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
        yield server


def client_of(server: FakeServer, name: str) -> Client:
    return Client(server.target, ClientSecurity(api_key=f"k-{name}"))


@each_call
def test_a_tenants_key_steers_nothing(keyed: FakeServer, call: Callable[[Client], object]) -> None:
    with client_of(keyed, "red") as client, pytest.raises(CallError) as caught:
        call(client)
    assert caught.value.code == "PERMISSION_DENIED"
    assert "om-serve keys add NAME --operator" in str(caught.value)
    assert not keyed.engine.is_draining


@each_call
def test_strangers_of_a_network_steer_nothing(call: Callable[[Client], object]) -> None:
    access = Access(is_steering_open=False)
    with FakeServer(access=access) as server, Client(server.target) as client:
        with pytest.raises(CallError, match="--api-keys") as caught:
            call(client)
        assert caught.value.code == "PERMISSION_DENIED"
        assert list(next(client.control.watch_load(details=True)).details.answers) == []


@pytest.mark.parametrize(
    ("host", "is_open"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_without_keys_it_is_open_to_the_machine_alone(host: str, is_open: bool) -> None:
    settings = settings_of(host=host, allow_insecure_listen=True)
    assert open_access(settings, Lifecycle()).is_steering_open is is_open


def test_a_tenant_aborts_its_own_and_an_operator_everybodys(keyed: FakeServer) -> None:
    with client_of(keyed, "red") as red, client_of(keyed, "blue") as blue:
        streams = [c.stream("x") for c in (red, red, blue, blue)]
        for stream in streams:
            assert next(stream).text == "a"
        assert red.control.abort_tenant("red") == 2
        assert [len(list(stream)) for stream in streams[:2]] == [1, 1]
        (one, _) = (r.request_id for r in keyed.generator.requests if r.owner == "blue")
        with pytest.raises(CallError) as caught:
            red.abort(one)
        assert caught.value.code == "NOT_FOUND"
        with client_of(keyed, "op") as operator:
            operator.abort(one)
            keyed.await_that(lambda: len(keyed.generator.live) == 1)
            assert operator.control.abort_all() == 1
            assert operator.control.abort_all() == 0
        assert [len(list(stream)) for stream in streams[2:]] == [1, 1]


def test_the_right_is_made_shown_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    file = ["--file", str(path)]
    run_keys(["add", "op", "--operator", "--max-concurrent-requests", "0", *file], {})
    run_keys(["add", "user", *file], {})
    capsys.readouterr()
    run_keys(["list", *file], {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "op tenant=op tenant_weight=1 max_concurrent_requests=0 operator"
    assert shown[1] == "user tenant=user tenant_weight=1"
    path.write_text(path.read_text().replace("true", '"yes"'))
    with pytest.raises(ConfigError, match="operator is 'yes', wanted true or false"):
        read_key_file(path)


def test_flush_tells_how_many_blocks(client: Client) -> None:
    assert client.control.flush_prefix_cache() == 5


def test_the_log_level_changes_here_and_in_the_device_process(
    server: FakeServer, client: Client
) -> None:
    logging.getLogger().setLevel(logging.INFO)
    assert client.control.set_log_level(pb.LOG_LEVEL_DEBUG) == pb.LOG_LEVEL_INFO
    assert logging.getLogger().level == logging.DEBUG
    assert server.engine.log_level == logging.DEBUG
    assert client.control.set_log_level(pb.LOG_LEVEL_ERROR) == pb.LOG_LEVEL_DEBUG
    with pytest.raises(CallError, match="wanted one of LOG_LEVEL_DEBUG"):
        client.control.set_log_level(pb.LOG_LEVEL_UNSPECIFIED)


def test_a_dump_has_the_state_and_nothing_of_content(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(0, "answered", (1,)), FakeGenerator.HOLD]
    stream = client.stream("a secret prompt")
    next(stream)
    dump = client.control.dump_state()
    facts = json.loads(dump.json)
    assert list(dump.cuts) == []
    assert facts["state"] == "serving"
    assert [answer["request_id"] for answer in facts["engine"]["answers"]] == ["r1", "r2"]
    assert facts["engine"]["blocks"][0] == ["held", 2]
    assert facts["settings"]["engine"]["device"] == "cpu"
    assert facts["limits"]["num_blocks"] == 17
    for secret in ("secret", "answered"):
        assert secret not in dump.json
    stream.close()


def test_a_dump_says_what_was_cut_and_that_the_engine_does_not_answer(
    server: FakeServer, client: Client
) -> None:
    server.engine.state = replace(server.engine.state, num_sequences=900, block_states=b"\0" * 4)
    cuts = list(client.control.dump_state().cuts)
    assert cuts == ["engine.answers: 2 of 900", "engine.blocks: 4 of 16"]
    with FakeServer(loaded=False) as loading, Client(loading.target) as other:
        dump = other.control.dump_state()
        assert json.loads(dump.json)["engine"] is None
        assert list(dump.cuts) == ["engine: it has never answered"]
