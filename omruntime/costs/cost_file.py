"""CostFile: a cost table between two runs, a JSON file in the user's cache folder.

Never in the bundle, which may be read-only and is shared by machines of other speed. A file that
is missing, damaged or of something else is no error, and neither is a folder that cannot be
written or found: the table then lives in memory alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.errors import ConfigError, OmError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
# A thousand buckets take about 60 KB.
MAX_FILE_BYTES = 1 << 20
# No run takes an hour; larger numbers would also pass float's range when they are added up.
MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a measurement holds for: this bundle on this device with so many threads."""

    manifest_digest: str
    device: str
    soc: str
    num_threads: int

    @staticmethod
    def read(path: Path) -> CostKey:
        """The key that a file says it has.

        Raises:
            ConfigError: It is no file of costs.
        """
        try:
            key = json.loads(path.read_text(encoding="utf-8"))["key"]
            return CostKey(**key)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path} is no file of measured costs: {error}") from error

    def file_name(self) -> str:
        """Equal keys, equal names."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


class CostFile:
    """The file of one key; without a path it never knows anything and keeps nothing."""

    def __init__(self, path: Path | None, key: CostKey) -> None:
        self._key = key
        # Seconds of buckets that the limits of this run leave out, for a run with wider ones.
        self._others: dict[Bucket, float] = {}
        self.path = path

    @staticmethod
    def within(cache_dir: Path, key: CostKey) -> CostFile:
        """The key's file in a cache folder, which need not exist."""
        try:
            folder = cache_dir.expanduser()
        except RuntimeError:  # `~` of a user whom nobody knows, as containers start them
            logger.info("measured costs stay in memory reason='%s has no home'", cache_dir)
            return CostFile(None, key)
        return CostFile(folder / "costs" / key.file_name(), key)

    def load_into(self, costs: CostTable) -> None:
        """Take over what the file knows of the table's buckets; nothing when it is of no use."""
        if self.path is None:
            return
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
            switch_s, seconds = _parsed(text, self._key)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError, OmError) as error:
            logger.warning("measured costs are ignored path=%s reason=%s", self.path, error)
            return
        costs.switch_s = switch_s
        self._others = {b: value for b, value in seconds.items() if b not in costs}
        for bucket, value in seconds.items():
            if bucket in costs:
                costs.measure(bucket, value)
        logger.info("measured costs read path=%s", self.path)

    def save(self, costs: CostTable) -> None:
        """Write the measured costs, whole or not at all; a refusal is only logged."""
        if self.path is None:
            return
        rows = [
            [b.phase.value, b.batch, b.tokens, b.past_blocks, round(seconds, 9)]
            for b, seconds in {**self._others, **costs.measured}.items()
        ]
        plain = {
            "format_version": FORMAT_VERSION,
            "key": asdict(self._key),
            "switch_s": costs.switch_s,
            "seconds": rows,
        }
        try:
            _write_whole(self.path, json.dumps(plain, indent=1) + "\n")
        except OSError as error:
            logger.info("measured costs stay in memory path=%s reason=%s", self.path, error)
        else:
            logger.info("measured costs written path=%s", self.path)


def _parsed(text: bytes, key: CostKey) -> tuple[float, dict[Bucket, float]]:
    """Switch cost, and seconds by bucket; ValueError says what is wrong."""
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
    plain = json.loads(text)
    if not isinstance(plain, dict) or plain.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"not of format version {FORMAT_VERSION}")
    if plain.get("key") != asdict(key):
        raise ValueError("it belongs to another bundle, device or number of threads")
    rows = plain.get("seconds")
    if not isinstance(rows, list):
        raise ValueError("no list of seconds")
    return _duration(plain.get("switch_s")), dict(_row(row) for row in rows)


def _row(row: object) -> tuple[Bucket, float]:
    if not isinstance(row, list) or len(row) != 5:
        raise ValueError(f"row {row!r}, wanted phase, batch, tokens, past_blocks, seconds")
    phase, batch, tokens, past_blocks, seconds = row
    if not all(type(size) is int for size in (batch, tokens, past_blocks)):
        raise ValueError(f"row {row!r}: a size is not a whole number")
    if _duration(seconds) == 0:
        raise ValueError(f"row {row!r}: the seconds are 0")
    return Bucket(Phase(phase), batch, tokens, past_blocks), _duration(seconds)


def _duration(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number of seconds")
    if not 0 <= value <= MAX_SECONDS:  # NaN is neither
        raise ValueError(f"a number of seconds is outside 0 to {MAX_SECONDS:g}")
    return float(value)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".costs-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
