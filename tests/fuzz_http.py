"""Requests that schemathesis makes of the HTTP gateway's own OpenAPI document.

`python -m tests.fuzz_http --count 10000` sends so many to a server over a toy model, or over a real
one with `--bundle`; the test suite sends a few. Valid and invalid ones in turn: each must get an
answer below 500 in the shape of its route, and afterwards the server holds nothing and logs no
defect.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis import GenerationMode

from server.client import Client
from tests.e2e.server_child import ServerChild
from tests.omruntime.toy_model import write_bytes_toy_bundle
from tests.real_server import (
    MODEL,
    add_bundle_options,
    chosen_server,
    memory_line,
    resident_mb,
)
from tests.server.tiny_tokenizers import byte_level_backend, write_tokenizer

TIMEOUT_S = 60.0
# Requests under way at a time: a server batches them, so a real model is not asked one by one.
CONCURRENCY = 8
HTTP = ("--http-port", "0")
# Knows tools and thoughts, so that their parsers are on the way of every answer.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
)
# Half a character, what are no numbers, and numbers that no machine and no float has.
POISONED_KEY = "\ud800"
_NO_NUMBERS = (float("nan"), float("inf"), -float("inf"))
POISONS = (POISONED_KEY, "\x00", *_NO_NUMBERS, 1 << 200, 1 << 2000, -0.0, [], {})
_JSON = {"Content-Type": "application/json"}


@dataclass
class Tally:
    """How the requests ended.

    Attributes:
        statuses: How many answers each status had.
        failures: One line for each answer that is wrong.
        resident_mb: The server's memory around each operation.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)


@contextmanager
def toy_server(folder: Path, options: Sequence[str] = HTTP) -> Iterator[ServerChild]:
    """`om-serve` with HTTP over a toy model that speaks bytes."""
    bundle = write_bytes_toy_bundle(folder / "bundle")
    write_tokenizer(bundle / "tokenizer", byte_level_backend())
    (bundle / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    child = ServerChild(bundle, folder, ("--num-threads", "1", *options))
    with child.running():
        yield child


def fuzz(child: ServerChild, count: int, seed: int) -> Tally:
    """Send `count` requests, the same number to each operation that takes something."""
    url = child.url
    document = requests.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations()]
    posts = [(o, mode) for o in operations if o.method == "post" for mode in GenerationMode]
    gets = [(o, GenerationMode.POSITIVE) for o in operations if o.method == "get"]
    assert len(posts) + len(gets) == len(operations) + len(posts) // 2, "another method"
    tally = Tally(resident_mb=[resident_mb(child)])
    sender = _Sender(url, tally, random.Random(seed))
    for runs, share in ((gets, 1), (posts, -(-(count - len(gets)) // len(posts)))):
        for operation, mode in runs:
            with ThreadPoolExecutor(CONCURRENCY) as pool:
                _run(operation.as_strategy(generation_mode=mode), sender, pool, share, seed)
            tally.resident_mb.append(resident_mb(child))
    return tally


def _run(strategy: Any, sender: _Sender, pool: ThreadPoolExecutor, count: int, seed: int) -> None:
    sent: list[Future[None]] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def send(case: Any) -> None:
        sent.append(pool.submit(sender.send, case, sender.drawn_body(case)))

    send()
    for future in sent:
        future.result()


_Drawn = tuple[Any, bool]


class _Sender:
    """Sends cases, from several threads at once; bodies are drawn by one thread, in their order."""

    def __init__(self, url: str, tally: Tally, draws: random.Random) -> None:
        self._url = url
        self._tally = tally
        self._draws = draws
        self._lock = threading.Lock()
        self._local = threading.local()

    def drawn_body(self, case: Any) -> _Drawn:
        """The body to send, mostly for the model that is served, and whether it is poisoned."""
        body = case.body
        if isinstance(body, dict) and "model" in body and self._draws.random() < 0.9:
            body = {**body, "model": MODEL}
        if isinstance(body, dict) and self._draws.random() < 0.2:
            return _poisoned(body, self._draws), True
        return body, False

    def send(self, case: Any, drawn: _Drawn) -> None:
        """Send a case with this body and look at its answer."""
        body, poisoned = drawn
        if poisoned:
            # By hand, since libraries refuse to write such bodies.
            url, data = f"{self._url}{case.formatted_path}", json.dumps(body)
            response = self._session.post(url, data=data, headers=_JSON, timeout=TIMEOUT_S)
        else:
            case.body = body
            response = case.call(base_url=self._url, session=self._session, timeout=TIMEOUT_S)
        wrong = _wrong(response.status_code, response.content.decode())
        place = f"{case.method} {case.formatted_path}"
        with self._lock:
            self._tally.statuses[response.status_code] += 1
            if wrong:
                self._tally.failures.append(f"{place}: {wrong}: {body!r:.500}")

    @property
    def _session(self) -> requests.Session:
        """The connections of this thread: a session of requests is not for several."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        session: requests.Session = self._local.session
        return session


def _poisoned(value: Any, draws: random.Random) -> Any:
    """The same with one leaf, or key, that JSON allows and little else does."""
    if isinstance(value, dict) and value:
        key = draws.choice(sorted(value))
        if draws.random() < 0.1:
            return {**value, POISONED_KEY: value[key]}
        return {**value, key: _poisoned(value[key], draws)}
    if isinstance(value, list) and value:
        place = draws.randrange(len(value))
        return [*value[:place], _poisoned(value[place], draws), *value[place + 1 :]]
    return draws.choice(POISONS)


def _wrong(status: int, text: str) -> str:
    """What is wrong with an answer; empty when nothing is."""
    if status >= 500:
        return f"{status} {text[:300]}"
    if status < 400:
        return ""
    error = json.loads(text).get("error")
    told = error.get("message") if isinstance(error, dict) else error
    return "" if isinstance(told, str) and told else f"{status} without a message: {text[:300]}"


def leftovers(child: ServerChild) -> str:
    """What the server still holds, or defects in its log; empty when there is nothing."""
    with Client(child.target) as client:
        load = client.load()
    held = (load.num_running, load.num_waiting, load.num_referenced_blocks)
    if held != (0, 0, 0):
        return f"running, waiting and referenced blocks are {held}"
    log = child.log.read_text()
    return log if "Traceback" in log else ""


def main() -> int:
    """Run as told on the command line; returns 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    add_bundle_options(parser)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        chosen_server(options, Path(folder), toy_server, HTTP) as child,
    ):
        tally = fuzz(child, options.count, options.seed)
        left = leftovers(child)
    print(f"{tally.statuses.total()} answers by status: {dict(sorted(tally.statuses.items()))}")
    print(memory_line(tally.resident_mb))
    print("\n".join([*tally.failures[:50], left]))
    print(f"{len(tally.failures)} wrong")
    return 1 if tally.failures or left else 0


if __name__ == "__main__":
    sys.exit(main())
