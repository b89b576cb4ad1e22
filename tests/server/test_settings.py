"""Flags, variables, defaults; every wrong one is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from omruntime.errors import ConfigError
from omruntime.settings import EngineSettings
from server.settings import ENGINE_HELP, Settings, is_loopback, list_flags, list_options


def test_flag_beats_variable_beats_default() -> None:
    environ = {"OMSERVE_MAX_NUM_SEQS": "3", "OMSERVE_DRAIN_TIMEOUT_S": "7.5"}
    settings = Settings.load(["bundle", "--max-num-seqs", "5"], environ)
    assert settings.bundle == Path("bundle")
    assert settings.engine.max_num_seqs == 5
    assert settings.drain_timeout_s == 7.5
    assert settings.grpc_port == 50051


def test_the_clients_key_is_no_mistake() -> None:
    assert Settings.load(["b"], {"OMSERVE_API_KEY": "k"}) == Settings(bundle=Path("b"))


def test_everything_can_come_from_the_environment() -> None:
    environ = {option.env: option.default_text or "1" for option in list_options()}
    environ |= {"OMSERVE_BUNDLE": "b", "OMSERVE_ENABLE_PREFIX_CACHE": "no"}
    environ |= {"OMSERVE_NUM_BLOCKS": "9", "OMSERVE_MAX_MODEL_LEN": "64"}
    environ |= {"OMSERVE_MAX_CHUNK_TOKENS": "8", "OMSERVE_ALLOW_FAULTS": "1"}
    environ |= {"OMSERVE_TOOL_PARSER": "hermes", "OMSERVE_OTLP_ENDPOINT": "http://localhost:4317"}
    settings = Settings.load([], environ)
    assert settings.bundle == Path("b")
    assert not settings.engine.enable_prefix_cache
    assert (settings.engine.num_blocks, settings.engine.max_model_len) == (9, 64)


def test_both_ports_may_be_any_free_one() -> None:
    assert Settings.load(["b", "--grpc-port", "0", "--http-port", "0"], {}).http_port == 0


def test_boolean_flags_have_a_negative() -> None:
    environ = {"OMSERVE_ENABLE_PREFIX_CACHE": "1"}
    assert not Settings.load(["b", "--no-enable-prefix-cache"], environ).engine.enable_prefix_cache


def test_defaults_are_those_of_the_dataclasses() -> None:
    assert Settings.load(["b"], {}) == Settings(bundle=Path("b"))
    assert Settings.load(["b"], {}).engine == EngineSettings()


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        ([], {}, "OMSERVE_BUNDLE"),
        (["b", "c"], {}, "unrecognized arguments: c"),
        (["b", "--grpc-por", "1"], {}, "--grpc-por"),
        (["b", "--grpc-prt", "1"], {}, "--grpc-prt; did you mean --grpc-port?; om-serve --help"),
        (["b", "--grpc-port"], {}, "--grpc-port"),
        (["b", "--grpc-port", "x"], {}, "--grpc-port is 'x', wanted a whole number"),
        (["b", "--grpc-port", "65536"], {}, "grpc_port is 65536, wanted 0 to 65535"),
        (["b", "--http-port", "50051"], {}, "http_port and grpc_port are both 50051"),
        (["b", "--log-level", "loud"], {}, "wanted one of debug, info, warning, error"),
        (["b", "--deterministic=1"], {}, "takes no value: give --deterministic alone, or --no-d"),
        (["b"], {"OMSERVE_HTTP_PORT": ""}, "a whole number; leave it out for the default"),
        (["b", "--drain-timeout-s", "nan"], {}, "drain_timeout_s"),
        (["b", "--drain-timeout-s=-1"], {}, "drain_timeout_s"),
        (["b", "--slow-reader-timeout-s", "0"], {}, "slow_reader_timeout_s"),
        (["b", "--drain-delay-s=-1"], {}, "drain_delay_s"),
        (["b", "--tls-cert", "c"], {}, "tls_cert is set without tls_key"),
        (["b", "--tls-key", "k"], {}, "tls_key is set without tls_cert"),
        (["b", "--tls-client-ca", "a"], {}, "tls_client_ca is set without tls_cert"),
        (["b", "--host", "0.0.0.0", "--api-keys", "k"], {}, "give --tls-cert and --tls-key"),
        (["b", "--tool-parser", "hermes"], {}, "tool_parser is set without http_port"),
        (["b", "--reasoning-parser", "none"], {}, "reasoning_parser is set without http_port"),
        (["b", "--max-message-mib", "2048"], {}, "1 to 2047"),
        (["b", "--num-blocks", "1"], {}, "num_blocks"),
        (["b", "--device="], {}, "--device is ''"),
        (["b"], {"OMSERVE_MAX_NUM_SEQS": "many"}, "OMSERVE_MAX_NUM_SEQS is 'many'"),
        (["b"], {"OMSERVE_ENABLE_PREFIX_CACHE": "maybe"}, "wanted one of 1, true"),
        (["b"], {"OMSERVE_GRPC_PROT": "1"}, "did you mean OMSERVE_GRPC_PORT"),
        (["b"], {"OMSERVE_ZZZ": "1"}, "OMSERVE_ZZZ, which is no setting"),
        (["b"], {"OMSERVE_GRPC_PORT": "tcp://10.0.0.1:50051"}, "enableServiceLinks"),
    ],
)
def test_refusals(argv: list[str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(argv, environ)
    assert words in str(caught.value)


def test_variables_that_kubernetes_makes_for_a_service_named_omserve_are_no_settings() -> None:
    environ = {
        "OMSERVE_SERVICE_HOST": "10.0.0.1",
        "OMSERVE_SERVICE_PORT": "50051",
        "OMSERVE_SERVICE_PORT_GRPC": "50051",
        "OMSERVE_PORT": "tcp://10.0.0.1:50051",
        "OMSERVE_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "OMSERVE_PORT_50051_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }
    assert Settings.load(["b"], environ) == Settings(bundle=Path("b"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    Settings(bundle=Path("b"), host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.0.0.1", "example.org", ""])
def test_beyond_loopback_needs_a_flag(host: str) -> None:
    """BL-47: `::` counts as beyond loopback."""
    with pytest.raises(ConfigError, match="TLS"):
        Settings(bundle=Path("b"), host=host)
    Settings(bundle=Path("b"), host=host, allow_insecure_listen=True)
    Settings(bundle=Path("b"), host=host, tls_cert=Path("c"), tls_key=Path("k"))


@pytest.mark.parametrize(
    ("host", "address"), [("::1", "[::1]:1"), ("[::1]", "[::1]:1"), ("localhost", "localhost:1")]
)
def test_address(host: str, address: str) -> None:
    assert Settings(bundle=Path("b"), host=host).address(1) == address


def test_help_names_every_flag_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Settings.load(["--help"], {})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    for flag, env, default, help_text in list_flags():
        assert flag.replace("--[no-]", "--no-") in text
        assert f"[{env}]" in text
        assert help_text.replace("- ", "-") in text
        assert f"(default: {default})" in text or not default


def test_every_engine_setting_has_help() -> None:
    assert ENGINE_HELP.keys() == {f.name for f in dataclasses.fields(EngineSettings)}


def test_tool_parsers_are_named() -> None:
    with pytest.raises(ConfigError, match="tool_parser is 'x', wanted one of hermes, llama3"):
        Settings.load(["b", "--tool-parser", "x"], {})
