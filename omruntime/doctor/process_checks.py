"""Checks of where this process runs: container, visible devices, limits."""

from __future__ import annotations

from omruntime.doctor.finding import Verdict, not_applicable, ok, problem, warning
from omruntime.doctor.installs import DEFAULT_ASCEND
from omruntime.doctor.survey import Survey

_DRIVER_MOUNTS = (f"{DEFAULT_ASCEND}/driver/lib64", f"{DEFAULT_ASCEND}/driver/version.info")
# One per connection, program file and device queue, with room to spare; our own rule.
_LEAST_OPEN_FILES = 1024
# An OM file passes through host memory when it is loaded; our own rule of thumb.
_LEAST_MEMORY_BYTES = 4 * 1024**3


def container(facts: Survey) -> Verdict:
    """Whether a container was given the host's driver."""
    if not facts.in_container:
        return not_applicable("not in a container")
    if not facts.has_card:
        return not_applicable("a container without a card")
    missing = [path for path in _DRIVER_MOUNTS if not facts.machine.exists(path)]
    if missing:
        return problem(
            f"in a container without {', '.join(missing)}",
            "start it with " + " ".join(f"-v {path}:{path}:ro" for path in missing),
        )
    return ok("in a container with the host's driver")


def docker_runtime(facts: Survey) -> Verdict:
    """Whether Ascend Docker Runtime did what ASCEND_VISIBLE_DEVICES asks of it."""
    asked = facts.machine.environ.get("ASCEND_VISIBLE_DEVICES", "")
    if not asked or asked == "void":
        return not_applicable("ASCEND_VISIBLE_DEVICES is not set")
    if facts.in_container and not facts.chip_nodes:
        return problem(
            f"ASCEND_VISIBLE_DEVICES is {asked!r}, but no /dev/davinciN was mounted",
            "the variable works with Ascend Docker Runtime alone: start the container with "
            "--runtime=ascend, or pass devices and mounts by hand",
        )
    return ok(f"ASCEND_VISIBLE_DEVICES is {asked!r}")


def visible_devices(facts: Survey) -> Verdict:
    """Whether ASCEND_RT_VISIBLE_DEVICES says what its author meant."""
    value = facts.machine.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return not_applicable("ASCEND_RT_VISIBLE_DEVICES is not set, so all chips are visible")
    parts = value.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        return problem(
            f"ASCEND_RT_VISIBLE_DEVICES is {value!r}: CANN reads up to the first character that is "
            f"neither digit nor comma and ignores the rest",
            "write numbers and commas alone, such as 0,1",
        )
    return _judge_ids([int(part) for part in parts], len(facts.chip_nodes))


def _judge_ids(ids: list[int], num_chips: int) -> Verdict:
    found = f"ASCEND_RT_VISIBLE_DEVICES is {','.join(map(str, ids))}"
    if ids != sorted(set(ids)):
        return problem(f"{found}: CANN takes ascending numbers alone", "sort them, each once")
    if num_chips and ids[-1] >= num_chips:
        return problem(
            f"{found}, and there are {num_chips} chip(s), numbered from 0",
            "name chips that this process has",
        )
    names = ", ".join(f"ascend:{i} is chip {chip}" for i, chip in enumerate(ids))
    return ok(f"{found}, which renumbers them: {names}")


def limits(facts: Survey) -> Verdict:
    """Limits of the process that would stop a server."""
    known = facts.machine.limits
    found = ", ".join(f"{n} {'unlimited' if v is None else v}" for n, v in known.items())
    files = known.get("open files")
    if files is not None and files < _LEAST_OPEN_FILES:
        return warning(found, f"ulimit -n {_LEAST_OPEN_FILES}, or LimitNOFILE= of the service")
    if known.get("address space") is not None:
        return warning(
            found, "ulimit -v unlimited: the driver reserves far more addresses than it uses"
        )
    return ok(found)


def memory_limit(facts: Survey) -> Verdict:
    """Host memory that the container or service may use."""
    limit = facts.memory_limit_bytes
    if limit is None:
        return ok("no limit on host memory")
    found = f"host memory is limited to {limit / 1024**3:.1f} GiB"
    if limit < _LEAST_MEMORY_BYTES:
        return warning(found, "an OM passes through host memory at load: allow its size and 2 GiB")
    return ok(found)


def readable_files(facts: Survey) -> Verdict:
    """Whether everything above could be read; must run last."""
    unreadable = facts.machine.unreadable
    if not unreadable:
        return ok("every file that is there could be read")
    return warning(
        "; ".join(f"{path}: {reason}" for path, reason in sorted(unreadable.items())),
        "what depends on these files is unknown: mend their permissions, or run doctor as root",
    )
