"""The tokenizer folder of a bundle: all that serving needs to turn text into ids and back.

Owns what is written and the proof that it gives the checkpoint's own ids:

    tokenizer.json              what the tokenizers library runs; adds the special tokens that
                                the checkpoint adds to plain text
    tokenizer_config.json       {"add_bos", "bos_token", "eos_token", "special_tokens"}
    chat_template.jinja         the default template, when there is one
    chat_template.<name>.jinja  further named ones
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from omruntime.errors import ExportError

# Texts on which tokenizers like to differ: nothing, spaces, marks, scripts, pictures, control.
_PROBES = (
    "",
    "Hello",
    "Hello world, it's 1234567 o'clock.",
    "  leading and trailing  ",
    "tab\tnew\n\nline\r\n    indented",
    "déjà vu — ﬁne “quotes”",
    "你好世界。こんにちは 안녕",
    "🦙👩‍👩‍👧‍👦龘",
    "def f(x):\n\treturn x ** 2  # comment",
)
# It becomes part of a file's name.
_TEMPLATE_NAME = re.compile(r"[\w.-]+")


class _GenerationTag(Extension):
    """`{% generation %}`, which transformers knows; it only marks text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag as a plain scope around its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def write_tokenizer(
    tokenizer: PreTrainedTokenizerFast, folder: Path, add_bos: bool | None
) -> tuple[str, ...]:
    """Write the tokenizer folder and prove it.

    Args:
        folder: Created here.
        add_bos: What a GGUF file says about it; None leaves it to the tokenizer.

    Returns:
        The names of the files written, sorted.

    Raises:
        ExportError: A template does not compile or has a name that no file can have, the
            tokenizer cannot encode some text, or the written one gives other ids.
    """
    templates = named_templates(tokenizer)
    for name, template in templates.items():
        if not _TEMPLATE_NAME.fullmatch(name):
            raise ExportError(
                f"a chat template has the name {name!r}, wanted letters, digits and _.-; rename "
                f"or remove it in tokenizer_config.json"
            )
        require_compiles(name, template)
    folder.mkdir()
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    adds_bos = _begins_with_bos(tokenizer)
    if add_bos is not None and add_bos != adds_bos:
        _set_bos(backend, tokenizer, add_bos)
    contents = {
        "tokenizer.json": backend.to_str(),
        "tokenizer_config.json": _config_text(tokenizer, adds_bos if add_bos is None else add_bos),
    }
    for name, template in templates.items():
        middle = "" if name == "default" else f".{name}"
        contents[f"chat_template{middle}.jinja"] = template
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    _require_equal_ids(folder / "tokenizer.json", tokenizer, add_bos in (None, adds_bos))
    return tuple(sorted(contents))


def named_templates(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """The chat templates by name; transformers has already chosen between their sources."""
    given = tokenizer.chat_template
    if not given:
        return {}
    return (
        {str(k): str(v) for k, v in given.items()}
        if isinstance(given, dict)
        else {"default": given}
    )


def require_compiles(name: str, template: str) -> None:
    """Refuse a template that no request could use.

    Raises:
        ExportError: With line and reason.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    try:
        environment.from_string(template)
        template.encode()
    except TemplateSyntaxError as error:
        raise ExportError(
            f"the chat template {name!r} does not compile: line {error.lineno}: {error.message}"
        ) from error
    # No text, half a surrogate pair, or a constant that cannot be computed.
    except (TypeError, ValueError) as error:
        raise ExportError(f"the chat template {name!r} does not compile: {error}") from error


def tokens_beyond(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> tuple[str, ...]:
    """Tokens whose ids lie outside of the model, as `text (id)`."""
    beyond = [(i, token) for token, i in tokenizer.get_vocab().items() if i >= vocab_size]
    return tuple(f"{token} ({i})" for i, token in sorted(beyond))


def _begins_with_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    first = _ids(tokenizer, "a", add_special_tokens=True)[:1]
    return tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]


def _ids(tokenizer: PreTrainedTokenizerFast, text: str, *, add_special_tokens: bool) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])
    except Exception as error:  # the library raises the bare class
        raise ExportError(
            f"the checkpoint's tokenizer cannot encode {text!r}: {error}; give it an unknown token"
        ) from error


def _set_bos(backend: Tokenizer, tokenizer: PreTrainedTokenizerFast, add_bos: bool) -> None:
    """Follow the GGUF file where transformers does not."""
    if not add_bos:
        backend.post_processor = processors.Sequence([])
        return
    bos = tokenizer.bos_token
    if bos is None:
        raise ExportError("the GGUF file wants BOS before every text but names no BOS token")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_token_id)]
    )


def _config_text(tokenizer: PreTrainedTokenizerFast, add_bos: bool) -> str:
    special: Mapping[str, object] = tokenizer.special_tokens_map
    plain = {
        "add_bos": add_bos,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "special_tokens": {k: v for k, v in special.items() if isinstance(v, str)},
    }
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _require_equal_ids(
    path: Path, tokenizer: PreTrainedTokenizerFast, with_special_tokens: bool
) -> None:
    written = Tokenizer.from_file(str(path))
    special = [t for t in tokenizer.all_special_tokens if t]
    probes = [*_PROBES, *special, *(f"a {t} b{t}\n" for t in special)]
    for text in probes:
        for add in (True, False) if with_special_tokens else (False,):
            wanted = _ids(tokenizer, text, add_special_tokens=add)
            got = written.encode(text, add_special_tokens=add).ids
            if got != wanted:
                raise ExportError(
                    f"tokenizer.json encodes {text!r} as {got}, the checkpoint's tokenizer as "
                    f"{wanted} (special tokens {'added' if add else 'not added'})"
                )
