"""docs/security.md says what the programs do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omruntime.errors import ConfigError
from omruntime.scheduling.retry_pace import LEAST_S, MOST_S, UNKNOWN_S
from omruntime.settings import EngineSettings
from server.control.inspector import MIN_INTERVAL_S
from server.control.load_watch import MAX_WATCHERS
from server.grpc_server import MAX_HEADER_BYTES, READY_SERVICE, SPARE_STREAMS
from server.http.api_key import OPEN_PATHS
from server.http.body_limit import READ_TIMEOUT_S
from server.http.connection import HEADERS_TIMEOUT_S
from server.overload import OVERLOADED_FROM, RECOVERED_BELOW
from server.security.key_file import MAX_KEYS
from server.security.keys_command import run_keys
from server.session import MAX_LIVE_REQUESTS
from server.settings import list_options
from server.terminal.cli import parse_arguments

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def test_every_flag_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (lambda: run_keys(["add", "--help"], {}), lambda: parse_arguments(["chat", "-h"])):
        with pytest.raises((SystemExit, ConfigError)):
            show()
    known = {option.flag for option in list_options()} | {"--cacert"}
    known |= set(FLAG.findall(capsys.readouterr().out)) | {"--prompt"}
    assert set(FLAG.findall(PAGE)) <= known


def test_the_figures_are_the_programs() -> None:
    for words in (
        f"| {MAX_HEADER_BYTES >> 10} KiB |",
        f"| {READ_TIMEOUT_S:g} s |",
        f"| {HEADERS_TIMEOUT_S:g} s |",
        f"`--max-queued-requests`, {EngineSettings().max_queued_requests} |",
        f"`--max-num-seqs` and {SPARE_STREAMS} more |",
        f"| live requests of a session | {MAX_LIVE_REQUESTS} |",
        f"`--max-queued-tokens`, {EngineSettings().max_queued_tokens:,} |",
        f"{LEAST_S:g} to {MOST_S:g} s, {UNKNOWN_S:g} s before",
        f"when {OVERLOADED_FROM:.0%} of".replace("%", " %"),
        f"until less than {RECOVERED_BELOW:.0%} does".replace("%", " %"),
        f"the name `{READY_SERVICE}`",
        f"| keys of the file | {MAX_KEYS:,} |",
        f"| those who watch the load | {MAX_WATCHERS} |",
        f"| how often they are told | every {MIN_INTERVAL_S:g} s |",
        *(f"`{path}`" for path in OPEN_PATHS),
    ):
        assert words in PAGE, words
