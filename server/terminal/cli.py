"""`om-client`: talk to a server from a terminal or a script."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence

from omruntime.command_parser import CommandParser, Commands
from omruntime.errors import CallError, OmError, RequestError
from omruntime.sampling_params import SamplingParams
from server.client.arguments import Prompt
from server.client.messages import Generation
from server.status import exit_code_of
from server.terminal.bench.command import run_bench
from server.terminal.bench.options import add_bench_flags
from server.terminal.call_flags import (
    add_call_flags,
    add_connection_flags,
    call_options_of,
    terminal_client_of,
)
from server.terminal.chat_session import ChatSession
from server.terminal.control import CONTROL_COMMANDS, add_control_commands, run_control
from server.terminal.endings import why_not_whole
from server.terminal.options import add_sampling_flags, parse_token_ids, sampling_params_of
from server.text import ChatMessage, TextDelta
from server.version import omserve_version

_ROLES = ("system", "user", "assistant")

_EPILOG = (
    "Exit codes: 0 done; 2 wrong usage, or the server refused a value (INVALID_ARGUMENT); "
    "1 anything else, such as no server at the target; 130 Ctrl-C, but 0 of top, which ends so."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `om-client`; returns the exit code that --help documents."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without Unicode shows question marks instead of ending the program.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except OmError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; nothing is left to tell, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(error: OmError) -> int:
    code = f"{error.code}: " if isinstance(error, CallError) else ""
    message = f"om-client: {code}{error}".replace("\n", " ")
    print(message, file=sys.stderr)
    return exit_code_of(error)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ends the process with 2 on wrong usage."""
    parser = CommandParser(
        prog="om-client", description=__doc__, epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"omserve {omserve_version()}")
    commands = parser.add_subparsers(dest="command")
    generate = commands.add_parser(
        "generate", help="answer one prompt", epilog=_EPILOG, allow_abbrev=False
    )
    _add_prompt_flags(generate)
    generate.add_argument("--echo", action="store_true", help="print the prompt before the answer")
    generate.add_argument(
        "--json",
        action="store_true",
        help="print one object: text, token_ids, finish_reason, matched_stop, usage, timings, "
        "request_id, model, logprobs and prompt_logprobs when asked for; with --n above 1 also "
        "choices",
    )
    chat = commands.add_parser(
        "chat",
        help="hold a conversation, one line a turn",
        epilog=_EPILOG,
        allow_abbrev=False,
        description="Each line is a turn; /exit or end of input ends. Ctrl-C cancels the answer.",
    )
    chat.add_argument("--system", metavar="TEXT", help="system message before the first turn")
    score = _add_score(commands)
    bench = _add_bench(commands)
    control = add_control_commands(commands, _EPILOG)
    for command in (generate, chat, score):
        add_call_flags(command)
    for command in (generate, chat):
        add_sampling_flags(command)
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command is None:
        parser.refuse_unknown(rest)
    if arguments.command is None:
        parser.error(f"no command is given, wanted one of {', '.join(commands.choices)}")
    if rest:
        found = {"generate": generate, "chat": chat, "score": score, "bench": bench, **control}
        found[arguments.command].refuse_unknown(rest)
    return arguments


def _add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="plain text")
    prompt.add_argument(
        "--prompt-ids", metavar="IDS", type=parse_token_ids, help="token ids, such as 5,17"
    )
    prompt.add_argument(
        "--chat-message",
        metavar="TEXT",
        action="append",
        help="one turn of a chat, the user's unless it begins with 'system:', 'user:' or "
        "'assistant:'; repeatable",
    )


def _add_score(commands: Commands) -> CommandParser:
    score = commands.add_parser(
        "score",
        help="say how likely continuations of a prompt are",
        epilog=_EPILOG,
        allow_abbrev=False,
        description="Prints a line for each continuation: the natural logarithm of its "
        "probability, 'greedy' when greedy decoding gives it, and the continuation.",
    )
    _add_prompt_flags(score)
    score.add_argument(
        "--continuation",
        dest="continuations",
        metavar="TEXT",
        action="append",
        help="a text that may follow; repeatable",
    )
    score.add_argument(
        "--continuation-ids",
        dest="continuations",
        metavar="IDS",
        action="append",
        type=parse_token_ids,
        help="the same as token ids, such as 5,17; repeatable",
    )
    score.add_argument(
        "--top-logprobs",
        metavar="N",
        type=int,
        default=0,
        help="with --json also the best N tokens at each position, 0 to 20 (default: 0)",
    )
    score.add_argument(
        "--json",
        action="store_true",
        help="print one object: scores with logprob, is_greedy, tokens and usage; request_id, "
        "model",
    )
    return score


def _add_bench(commands: Commands) -> CommandParser:
    bench = commands.add_parser(
        "bench",
        help="load a server, and measure what its clients see",
        epilog=_EPILOG,
        allow_abbrev=False,
        description="Sends made-up or recorded requests in an open or closed loop and prints "
        "TTFT, TPOT, inter-token latency and goodput with their definitions. Says so when this "
        "client itself was the limit. Exit code 1 when a request was rejected or failed.",
    )
    add_connection_flags(bench)
    add_bench_flags(bench)
    return bench


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "bench":
        return run_bench(arguments, os.environ)
    if arguments.command == "score":
        return _run_score(arguments)
    if arguments.command in CONTROL_COMMANDS:
        return run_control(arguments, os.environ)
    params = sampling_params_of(arguments)
    if arguments.command == "chat" and params.n > 1:
        raise RequestError(f"n is {params.n}, but a chat has one answer a turn; leave --n out")
    _refuse_without_effect(arguments, params)
    options = call_options_of(arguments, echo=arguments.command == "generate" and arguments.echo)
    client = terminal_client_of(arguments, os.environ, arguments.retries)
    if arguments.command == "chat":
        return ChatSession(client, params, options, arguments.system).run()
    prompt = _prompt_of(arguments)
    if arguments.json:
        generation = client.generate(prompt, params, options)
        print(json.dumps(to_plain(generation, params), ensure_ascii=False))
        return 0
    if params.n > 1:
        return _print_all(client.generate(prompt, params, options).answers)
    return _print_stream(client.stream(prompt, params, options))


def _refuse_without_effect(arguments: argparse.Namespace, params: SamplingParams) -> None:
    """Refuse flags that would be sent or computed for nothing."""
    is_chat = arguments.command == "chat"
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None and (is_chat or not arguments.json):
            flag = name.replace("_", "-")
            raise RequestError(f"--{flag} is shown by generate --json alone; add --json")
    if not is_chat:
        _refuse_unused_template_arguments(arguments)


def _refuse_unused_template_arguments(arguments: argparse.Namespace) -> None:
    if arguments.template_arguments is not None and not arguments.chat_message:
        raise RequestError(
            "--template-arguments is for the chat template; use it with --chat-message"
        )


def _run_score(arguments: argparse.Namespace) -> int:
    if not arguments.continuations:
        raise RequestError("no continuation is given; add --continuation or --continuation-ids")
    _refuse_unused_template_arguments(arguments)
    if arguments.top_logprobs and not arguments.json:
        raise RequestError("--top-logprobs is shown by score --json alone; add --json")
    scores = terminal_client_of(arguments, os.environ, arguments.retries).score(
        _prompt_of(arguments),
        arguments.continuations,
        arguments.top_logprobs,
        call_options_of(arguments),
    )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(scores), ensure_ascii=False))
        return 0
    for continuation, score in zip(arguments.continuations, scores.scores, strict=True):
        shown = json.dumps(continuation, ensure_ascii=False)
        print(f"{score.logprob:.6f} {'greedy' if score.is_greedy else '-'} {shown}")
    return 0


def _prompt_of(arguments: argparse.Namespace) -> Prompt:
    if arguments.prompt is not None:
        return str(arguments.prompt)
    if arguments.prompt_ids is not None:
        return tuple(arguments.prompt_ids)
    return [_message_of(text) for text in arguments.chat_message]


def _message_of(text: str) -> ChatMessage:
    role, colon, content = text.partition(":")
    if colon and role in _ROLES:
        return ChatMessage(role, content.removeprefix(" "))
    return ChatMessage("user", text)


def _print_stream(deltas: Iterable[TextDelta]) -> int:
    last: TextDelta | None = None
    try:
        for last in deltas:
            sys.stdout.write(last.text)
            sys.stdout.flush()
    except (OmError, KeyboardInterrupt):
        if last is not None:
            # What is wrong begins a line of its own.
            print(flush=True)
        raise
    sys.stdout.write("\n")
    return _explain_end(last)


def _print_all(answers: Iterable[TextDelta]) -> int:
    worst = 0
    for answer in answers:
        print(f"--- answer {answer.index}\n{answer.text}")
        worst = max(worst, _explain_end(answer))
    return worst


def _explain_end(last: TextDelta | None) -> int:
    """Say on standard error why an answer is not whole; the exit code."""
    reason = why_not_whole(last)
    if reason is None:
        return 0
    print(f"om-client: {reason}", file=sys.stderr)
    return 1


def to_plain(generation: Generation, params: SamplingParams) -> dict[str, object]:
    """What --json prints: the first answer's fields, and with n above 1 all `choices`."""
    choices = [_choice(answer, params) for answer in generation.answers]
    plain = {key: value for key, value in choices[0].items() if key != "index"}
    plain |= {"request_id": generation.request_id, "model": generation.model}
    if params.n > 1:
        plain["choices"] = choices
    return plain


def _choice(answer: TextDelta, params: SamplingParams) -> dict[str, object]:
    timings = None if answer.timings is None else dataclasses.asdict(answer.timings)
    if answer.timings is not None and timings is not None:
        timings["time_to_first_token_s"] = answer.timings.queue_s + answer.timings.prefill_s
    plain: dict[str, object] = {
        "index": answer.index,
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "finish_reason": None if answer.finish_reason is None else answer.finish_reason.value,
        "matched_stop": answer.matched_stop,
        "usage": None if answer.usage is None else dataclasses.asdict(answer.usage),
        "timings": timings,
    }
    if params.logprobs is not None:
        plain["logprobs"] = [dataclasses.asdict(entry) for entry in answer.logprobs]
    if params.prompt_logprobs is not None:
        plain["prompt_logprobs"] = [dataclasses.asdict(each) for each in answer.prompt_logprobs]
    return plain
