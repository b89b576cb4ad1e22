"""What the builder of a bundle should read, though nothing is wrong enough to refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transformers import PretrainedConfig, PreTrainedTokenizerFast

from export.architectures import position_limit
from export.checkpoint import Checkpoint
from export.float16_range import RangeReport
from export.parity_report import ParityReport
from export.tokenizer_files import named_templates, tokens_beyond
from omruntime.buckets import BucketTable
from omruntime.manifest import ModelFacts
from omruntime.scheduling.reach import reachable

_DECLARED = ("generation_config.json", "config.json", "the GGUF file")
# Of generation_config.json, what changes transformers' answers and no default of a bundle holds,
# with the values that do nothing; null and an empty list never do anything. How long answers are
# is each request's own.
_WITHOUT_DEFAULT: Mapping[str, tuple[object, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": (),
    "stop_strings": (),
    "suppress_tokens": (),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}


def checkpoint_warnings(
    checkpoint: Checkpoint, facts: ModelFacts, tokenizer: PreTrainedTokenizerFast
) -> Iterator[str]:
    """What the checkpoint leaves open, or what was asked beyond it."""
    if not facts.eos_token_ids:
        yield "the checkpoint names no end token; answers end at their length limit only"
    elif facts.eos_source not in _DECLARED:
        yield (
            f"the end tokens are taken from {facts.eos_source}, as the checkpoint's configuration "
            f"names none; check that answers end where they should"
        )
    yield from generation_warnings(checkpoint.raw_generation_config)
    yield from length_warnings(checkpoint.config, facts.max_model_len)
    if not named_templates(tokenizer):
        yield "the checkpoint has no chat template; chat requests will be refused"
    beyond = tokens_beyond(tokenizer, facts.vocab_size)
    if beyond:
        yield (
            f"the tokenizer has tokens that the model has no embedding for, prompts with them "
            f"will be refused: {', '.join(beyond)}"
        )
    if checkpoint.files.ignored:
        yield f"ignored weight files: {', '.join(checkpoint.files.ignored)}"


def generation_warnings(generation_config: Mapping[str, object]) -> Iterator[str]:
    """What the checkpoint's generation_config.json wishes and answers will not follow."""
    left_out = [
        f"{name} {value!r}"
        for name, neutral in _WITHOUT_DEFAULT.items()
        if (value := generation_config.get(name)) not in (None, [], {}, *neutral)
    ]
    if left_out:
        yield (
            f"answers do not follow these of generation_config.json, as transformers' would: "
            f"{', '.join(left_out)}; requests can set banned_token_ids, logit_bias, "
            f"min_new_tokens and stop themselves"
        )


def length_warnings(config: PretrainedConfig, max_model_len: int) -> Iterator[str]:
    """Sequences longer than the model was made for."""
    limit = position_limit(config)
    if max_model_len > limit:
        yield (
            f"max_model_len is {max_model_len}, but the model was made for {limit} positions; "
            f"answers may lose their sense beyond those"
        )


def bucket_warnings(table: BucketTable, max_num_seqs: int, max_model_len: int) -> Iterator[str]:
    """Which buckets were asked for that no step within the limits takes."""
    used = reachable(table, max_num_seqs, max_model_len, table.max_tokens(past_blocks=1))
    unused = [bucket for bucket in table if bucket not in used]
    if unused:
        shapes = ", ".join(f"{b.phase.value} {b.batch}x{b.tokens}/{b.past_blocks}" for b in unused)
        yield (
            f"{len(unused)} of {len(table)} buckets are never used within --max-num-seqs "
            f"{max_num_seqs} and --max-model-len {max_model_len}: {shapes} (rows x tokens / past "
            f"blocks); leave them out, or plan for these limits"
        )


def range_warnings(ranges: RangeReport | None, report: ParityReport) -> Iterator[str]:
    """What was forced beyond float16's range."""
    if ranges is None:
        return
    if ranges.overflowing_weights:
        names = ", ".join(weight.name for weight in ranges.overflowing_weights)
        yield f"clipped to float16's range: {names}"
    if ranges.overflowing_activations:
        yield (
            f"activations pass float16's range at {next(iter(ranges.overflowing_activations))}; "
            f"{report.num_overflowed_rows} row(s) of the parity gate were not finite"
        )
