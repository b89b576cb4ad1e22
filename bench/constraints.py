"""What a constraint costs: compiling it, and a mask for each token, at two vocabularies.

`python -m bench.constraints`. The vocabularies are SmolLM2's (49,152 tokens) and a made one of
152,000, about that of Qwen. Each constraint is compiled anew several times, and an answer that
fits is followed token by token, spelt with the fewest tokens; of each token's mask the time is
taken. The last column is one row in the sampler, greedy, against the same row without a
constraint. With --peer, xgrammar is measured beside it where it is installed; it brings torch and
transformers along, which a serving machine does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from demo.bundle_cache import ensure_bundle
from demo.fetch_weights import SMOLLM2, fetch_weights
from demo.processes import ROOT
from omruntime.constraint import Constraint
from omruntime.grammar.llguidance_compiler import TOKENIZER_FILE, open_compiler
from omruntime.manifest import ModelFacts, SamplingDefaults
from omruntime.sampling.sampler import Sampler
from omruntime.sampling.token_matcher import Grammar, TokenMatcher
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence

NUM_MADE_TOKENS = 152_000
END = "<|im_end|>"

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "vip"]}},
    },
    "required": ["name", "age", "born", "tags"],
    "additionalProperties": False,
}
PERSON_ANSWER = '{"name":"Ada Lovelace of London","age":36,"born":"1815-12-10","tags":["vip"]}'
ORDERS = {
    "$defs": {"person": PERSON},
    "type": "object",
    "properties": {
        "orders": {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": kind}, "who": {"$ref": "#/$defs/person"}},
                        "required": ["kind", "who"],
                    }
                    for kind in ("buy", "sell", "hold")
                ]
            },
        },
        "note": {"type": "string", "maxLength": 200, "pattern": "^[\\w .,-]*$"},
    },
    "required": ["orders", "note"],
}
ORDERS_ANSWER = json.dumps(
    {
        "orders": [{"kind": kind, "who": json.loads(PERSON_ANSWER)} for kind in ("sell", "hold")],
        "note": "by hand.",
    }
)
LARGE = {
    "type": "object",
    "properties": {f"field_{i}": PERSON for i in range(100)},
    "required": [f"field_{i}" for i in range(100)],
    "additionalProperties": False,
}
LARGE_ANSWER = json.dumps({f"field_{i}": json.loads(PERSON_ANSWER) for i in range(4)})[:-1]

CASES = {
    "choices": (Constraint(choices=("yes", "no", "perhaps")), "perhaps"),
    "regex": (Constraint(regex="[a-z]{3,8}@[a-z]{3,8}\\.(?:com|org)"), "someone@example.org"),
    "any object": (Constraint(json_object=True), ORDERS_ANSWER),
    "small schema": (Constraint(json_schema=json.dumps(PERSON)), PERSON_ANSWER),
    "nested schema": (Constraint(json_schema=json.dumps(ORDERS)), ORDERS_ANSWER),
    "large schema": (Constraint(json_schema=json.dumps(LARGE)), LARGE_ANSWER),
}


class Vocabulary(NamedTuple):
    """A bundle's folder as far as a compiler reads it, and the same for this program."""

    name: str
    folder: Path
    backend: tokenizers.Tokenizer

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.backend.get_vocab_size()


class Costs(NamedTuple):
    """Of one constraint, in milliseconds, and how many tokens were followed."""

    compile_ms: float
    mask_median_ms: float
    mask_most_ms: float
    num_tokens: float


def make_vocabulary(folder: Path) -> Vocabulary:
    """Write a byte-level vocabulary of words, numbers, signs, indents and other scripts."""
    rng = random.Random(0)  # noqa: S311 - the same one at every run
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = dict.fromkeys(alphabet)
    letters, signs = "etaoinshrdlcumwfgypbvk", "{}[]\":,._-+*/=<>()'!?"
    while len(tokens) < NUM_MADE_TOKENS - 3:
        kind, length = rng.random(), rng.randint(2, 11)
        if kind < 0.75:
            word = "".join(rng.choices(letters, k=length))
            word = rng.choice([word, word, word.capitalize(), word.upper()])
        elif kind < 0.8:
            word = "".join(rng.choices("0123456789", k=min(length, 3)))
        elif kind < 0.9:
            word = "".join(rng.choices(signs, k=min(length, 4)))
        elif kind < 0.91:
            word = "Ġ" * length
        else:
            word = "".join(rng.choices(alphabet[128:], k=min(length, 6)))
        tokens[("Ġ" if rng.random() < 0.5 else "") + word] = None
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ("<|endoftext|>", "<|im_start|>", END)
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    (folder / TOKENIZER_FILE).parent.mkdir(parents=True)
    backend.save(str(folder / TOKENIZER_FILE))
    return Vocabulary("made", folder, backend)


def facts_of(vocabulary: Vocabulary) -> ModelFacts:
    """As much of a model as a compiler looks at."""
    end = vocabulary.backend.token_to_id(END)
    return ModelFacts(
        "bench", "Bench", 1, 1, 1, 2, vocabulary.size, 4096, 1, "float32", None, (end,), "bench",
        SamplingDefaults(temperature=0.0),
    )  # fmt: skip


def spell(vocabulary: Vocabulary, text: str) -> list[int]:
    """The text in the longest tokens from left to right, as a model would write it roughly."""
    to_sign = _signs_of_bytes()
    signs, vocab = "".join(to_sign[byte] for byte in text.encode()), vocabulary.backend.get_vocab()
    ids = []
    while signs:
        length = next(n for n in range(min(16, len(signs)), 0, -1) if signs[:n] in vocab)
        ids.append(vocab[signs[:length]])
        signs = signs[length:]
    return ids


def _signs_of_bytes() -> dict[int, str]:
    """The letter that byte-level vocabularies write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def measure_ours(
    compile_: Callable[[Constraint], Grammar], constraint: Constraint, token_ids: list[int]
) -> Costs:
    """Compile several times, then follow the answer with each of the last grammars' matchers."""
    compiling, masking = [], []
    for _ in range(5):
        start = time.perf_counter()
        grammar = compile_(constraint)
        compiling.append(time.perf_counter() - start)
        masking += _follow(grammar.new_matcher(), token_ids)
    return _costs(compiling, masking)


def _follow(matcher: TokenMatcher, token_ids: list[int]) -> Iterator[float]:
    for token_id in token_ids:
        start = time.perf_counter()
        mask = matcher.allowed()
        yield time.perf_counter() - start
        # The library may insist on its own spelling where the text is forced.
        matcher.accept(token_id if mask[token_id] else int(mask.argmax()))
        if matcher.is_finished:
            return


def _costs(compiling: list[float], masking: list[float]) -> Costs:
    return Costs(
        statistics.median(compiling) * 1e3,
        statistics.median(masking) * 1e3,
        max(masking) * 1e3,
        len(masking) / len(compiling),
    )


def row_ms(vocabulary: Vocabulary, grammar: Grammar | None) -> float:
    """The least time of one greedy row in the sampler, at the beginning of an answer."""
    model = facts_of(vocabulary)
    sampler = Sampler(model.vocab_size, model.eos_token_ids)
    row = np.random.default_rng(0).standard_normal((1, model.vocab_size)).astype(np.float32)
    params = SamplingParams(temperature=0.0).resolve(SamplingDefaults())
    sequence = Sequence.of(Request("bench", (0,), params), 0)
    sequence.matcher = None if grammar is None else grammar.new_matcher()
    seconds = []
    for _ in range(50):
        start = time.perf_counter()
        sampler.sample(row, [sequence])
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e3


def measure_peer(vocabulary: Vocabulary, constraint: Constraint, token_ids: list[int]) -> Costs:
    """The same with xgrammar."""
    import xgrammar

    vocab = vocabulary.backend.get_vocab()
    info = xgrammar.TokenizerInfo(
        sorted(vocab, key=vocab.__getitem__),
        xgrammar.VocabType.BYTE_LEVEL,
        vocab_size=vocabulary.size,
        stop_token_ids=[vocabulary.backend.token_to_id(END)],
    )
    compiling, masking = [], []
    for _ in range(5):
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        start = time.perf_counter()
        compiled = _compile_peer(compiler, constraint)
        compiling.append(time.perf_counter() - start)
        matcher = xgrammar.GrammarMatcher(compiled)
        bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.size)
        for token_id in token_ids:
            start = time.perf_counter()
            matcher.fill_next_token_bitmask(bitmask)
            masking.append(time.perf_counter() - start)
            if not matcher.accept_token(token_id) or matcher.is_terminated():
                break
    return _costs(compiling, masking)


def _compile_peer(compiler: Any, constraint: Constraint) -> Any:
    if constraint.json_schema is not None:
        return compiler.compile_json_schema(constraint.json_schema)
    if constraint.json_object:
        return compiler.compile_builtin_json_grammar()
    if constraint.regex is not None:
        return compiler.compile_regex(constraint.regex)
    assert constraint.choices is not None
    return compiler.compile_regex("|".join(constraint.choices))


def smollm2_vocabulary() -> Vocabulary:
    """That of the demo's bundle, which is built if need be."""
    checkpoint, bundle = fetch_weights(SMOLLM2), ROOT / ".cache" / "demo" / "smollm2"
    ensure_bundle(checkpoint, bundle, ("--name", "SmolLM2-135M-Instruct"))
    backend = tokenizers.Tokenizer.from_file(str(bundle / TOKENIZER_FILE))
    return Vocabulary("SmolLM2", bundle, backend)


def report(vocabulary: Vocabulary, with_peer: bool) -> None:
    """Print the table of one vocabulary."""
    start = time.perf_counter()
    compiler = open_compiler(vocabulary.folder, facts_of(vocabulary))
    opening_ms = (time.perf_counter() - start) * 1e3
    print(
        f"\n{vocabulary.name}, {vocabulary.size} tokens: opened in {opening_ms:.0f} ms; "
        f"a free row takes {row_ms(vocabulary, None):.3f} ms"
    )
    print(f"{'constraint':16} {'compile':>9} {'mask':>8} {'most':>8}  tokens {'row':>8}   ms")
    for name, (constraint, answer) in CASES.items():
        token_ids = spell(vocabulary, answer)
        costs = measure_ours(compiler.compile, constraint, token_ids)
        row = row_ms(vocabulary, compiler.compile(constraint))
        line = "{:16} {:9.2f} {:8.3f} {:8.3f} {:7.0f} {:8.3f}".format(name, *costs, row)
        if with_peer:
            line += "   xgrammar {:9.2f} {:8.3f} {:8.3f} {:7.0f}".format(
                *measure_peer(vocabulary, constraint, token_ids)
            )
        print(line)


def main() -> None:
    """Print one table for each vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", action="store_true", help="measure xgrammar, too")
    parser.add_argument("--bundle", type=Path, help="another vocabulary than the demo's")
    arguments = parser.parse_args()
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    if arguments.bundle is None:
        known = smollm2_vocabulary()
    else:
        backend = tokenizers.Tokenizer.from_file(str(arguments.bundle / TOKENIZER_FILE))
        known = Vocabulary(arguments.bundle.name, arguments.bundle, backend)
    report(known, arguments.peer)
    with tempfile.TemporaryDirectory() as folder:
        report(make_vocabulary(Path(folder)), arguments.peer)


if __name__ == "__main__":
    main()
