"""EngineSettings: how this process runs a bundle. What was built stands in the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import ConfigError

MIB = 1 << 20
DEFAULT_KV_MEMORY_MIB = 1024
MAX_TIMEOUT_S = 86400


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine.

    Attributes:
        device: Device name for `omruntime.device.open_device`, such as `cpu` or `native`.
        kv_memory_mib: Memory for the KV pool in MiB; a whole number of blocks is taken from it.
            A bundle that was compiled for one size of the pool refuses all but the default here.
        num_blocks: Blocks in the pool, the null block included; overrides `kv_memory_mib`.
        max_num_seqs: Most sequences that run at once; None means the bundle's.
        max_model_len: Most positions of one sequence; None means the bundle's.
        max_chunk_tokens: Longest prefill chunk; None means the longest bucket.
        enable_prefix_cache: Reuse the blocks of equal prompt beginnings.
        max_queued_requests: Waiting requests beyond which new ones are refused, those aside that
            may run at once; by default the burst of a batch client.
        max_queued_tokens: Waiting prompt tokens beyond which new requests are refused; by default
            as many requests of 1024 tokens, which are 8 MiB of ids.
        ttft_target_ms: Wished time to the first token; a prompt about to be late goes first.
        itl_target_ms: Wished time between two tokens, for which prefill steps hold back.
        deterministic: One bucket for each phase, so that a request's numbers do not depend on
            who else runs; see `pinned.py` for what that costs.
        overlap_scheduling: Schedule and lay out the next step while the device works on one,
            where it is sure what comes next; None does so on devices that work by themselves.
            Answers and plans are the same.
        check_invariants_every: Steps from one check of the engine's own state to the next; 0
            never checks. A check takes about a microsecond for each block.
        cache_dir: Folder for what is measured on this machine; it may be read-only or missing.
        num_threads: Threads of `cpu`, `openvino` and `native`; 0 means one for each core.
        isolate_device: Run the device in a process of its own, which is started anew when it
            dies or hangs; None decides by the device, see `is_isolated`. Of `om-serve` and
            `server.LLM`; `omruntime.LLM` has no second process.
        step_timeout_s: A step that takes longer is stuck. A chip's wait gives up a little
            before, and a device process is killed; a step on a CPU in the serving process is
            never given up. The longest step known, a chunk of a large model on a CPU, takes
            seconds.
        load_timeout_s: A device process that says nothing for so long while it loads is stuck;
            the time for reading the bundle from a slow disk is added. Starting Python from a
            network disk, opening a chip or preparing a program takes seconds, tens of them on a
            machine that does much else.
        allow_faults: Whether `inject_fault` is taken.
        inject_fault: Faults to inject, see `omruntime.device.faults`; for tests.
    """

    device: str = "cpu"
    kv_memory_mib: int = DEFAULT_KV_MEMORY_MIB
    num_blocks: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_chunk_tokens: int | None = None
    enable_prefix_cache: bool = True
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1 << 20
    num_threads: int = 0
    ttft_target_ms: int = 1000
    itl_target_ms: int = 100
    deterministic: bool = False
    overlap_scheduling: bool | None = None
    check_invariants_every: int = 1000
    cache_dir: Path = Path("~/.cache/omserve")
    isolate_device: bool | None = None
    step_timeout_s: float = 60.0
    load_timeout_s: float = 60.0
    allow_faults: bool = False
    inject_fault: str | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether the device is a simulation of a card."""
        return self.device.startswith("sim:")

    @property
    def is_isolated(self) -> bool:
        """Whether the device gets a process of its own.

        By default where a driver can take its process along or hang in it. A CPU has no
        driver, and a second process costs it a little of every step.
        """
        if self.isolate_device is None:
            return self.device.startswith("ascend:")
        return self.isolate_device

    def __post_init__(self) -> None:
        """Check every value by itself.

        Raises:
            ConfigError: A value is out of range; the message names the setting.
        """
        for name in ("kv_memory_mib", "max_queued_requests", "max_queued_tokens"):
            self._require_at_least(name, 1)
        # Two: the null block and one that can be handed out. Block ids are int32 in the graph.
        self._require_at_least("num_blocks", 2)
        self._require_at_most("num_blocks", (1 << 31) - 1)
        self._require_at_least("max_num_seqs", 1)
        self._require_at_least("max_model_len", 2)
        self._require_at_least("max_chunk_tokens", 2)
        self._require_at_least("num_threads", 0)
        self._require_at_least("ttft_target_ms", 1)
        self._require_at_least("itl_target_ms", 1)
        self._require_at_least("check_invariants_every", 0)
        for name in ("step_timeout_s", "load_timeout_s"):
            self._require_timeout(name)
        if self.inject_fault is not None and not self.allow_faults:
            raise ConfigError(
                f"inject_fault is {self.inject_fault!r}, which breaks answers on purpose; it is "
                f"for tests alone and needs --allow-faults"
            )
        # Beyond any machine's cores; the threads would be started all the same.
        self._require_at_most("num_threads", 1024)
        if self.num_threads and ":" in self.device:
            raise ConfigError(
                f"num_threads is {self.num_threads}: a chip such as {self.device} takes none of "
                f"the host's threads to run on; leave it out"
            )

    def _require_at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}, wanted at least {least}")

    def _require_timeout(self, name: str) -> None:
        value = getattr(self, name)
        if not 0 < value <= MAX_TIMEOUT_S:  # NaN is neither
            raise ConfigError(f"{name} is {value}, wanted above 0 and at most {MAX_TIMEOUT_S}")

    def _require_at_most(self, name: str, most: int) -> None:
        value = getattr(self, name)
        if value is not None and value > most:
            raise ConfigError(f"{name} is {value}, wanted at most {most}")
