"""Tokenizer: text and conversations -> token ids, and back; read from a bundle.

The folder `tokenizer/` of a bundle holds:

    tokenizer.json              run by the tokenizers library
    tokenizer_config.json       {"bos_token": str|null, "eos_token": str|null, "add_bos": bool,
                                 "special_tokens": {"bos_token": str, ...}}
    chat_template.jinja         the default template; absent when the checkpoint has none
    chat_template.<name>.jinja  further templates; `tool_use` applies when tools are given

Text that comes piece by piece is `detokenizer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from omruntime.errors import BundleError, PreconditionError, RequestError
from server.chat_template import ChatTemplate
from server.text import ChatMessage

TOKENIZER_FOLDER = "tokenizer"
# The library encodes one text in the calling thread but keeps the interpreter lock, which would
# hold up every other thread; as a batch it gives the lock up, and waits for other batches.
MAX_QUICK_CHARS = 4096
_DEFAULT, _TOOL_USE = "default", "tool_use"
# The conversation and the template itself are not the caller's to replace.
_RESERVED_ARGUMENTS = ("messages", "chat_template")


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What tokenizer.json does not say.

    Attributes:
        add_bos: Whether a text that is no conversation begins with `bos_token`.
        special_tokens: Texts by the name under which templates read them.
    """

    bos_token: str | None
    add_bos: bool
    special_tokens: Mapping[str, str]


class Tokenizer:
    """Immutable; may be used by several threads at once.

    Attributes:
        max_token_chars: Most characters of text that one token stands for.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: TokenizerConfig,
        templates: Mapping[str, ChatTemplate],
    ) -> None:
        # A prompt is never cut or filled up, whatever the checkpoint was trained with.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._config = config
        self._templates = templates
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._prefix = self._missing_bos()
        # As spelled in the vocabulary, where no spelling is shorter than the text it stands for.
        self.max_token_chars = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """Read the tokenizer folder of a bundle.

        Raises:
            BundleError: A file is missing or damaged; the message names it.
        """
        path = folder / "tokenizer.json"
        text = _read(path)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises the bare class
            raise BundleError(f"{path} is not a tokenizer: {error}") from error
        return Tokenizer(backend, _read_config(folder), _read_templates(folder))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; may differ from the width of the logits."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode_text(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """The ids of a plain prompt, with what the checkpoint's tokenizer adds by default.

        Raises:
            RequestError: The text is not valid Unicode.
        """
        ids = self._encode(text, add_special_tokens)
        return self._prefix + ids if add_special_tokens else ids

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a conversation, to be encoded without added special tokens.

        The template writes every special token itself, and those that a message spells out
        become the real ones, as in transformers.

        Args:
            messages: In order, at least one.
            template_arguments: Variables for the template; they win over its special tokens.
            add_generation_prompt: Whether to open the assistant's turn.

        Raises:
            PreconditionError: The bundle has no chat template.
            RequestError: The template refuses the conversation, there is no message, or an
                argument has a reserved name.
        """
        arguments = dict(template_arguments or {})
        reserved = [name for name in _RESERVED_ARGUMENTS if name in arguments]
        if reserved:
            raise RequestError(
                f"template_arguments holds {reserved}, which a request cannot replace; "
                f"the bundle's own chat template is used",
                "template_arguments",
            )
        if not messages:
            raise RequestError("messages is empty, wanted at least one", "messages")
        variables = {
            "add_generation_prompt": add_generation_prompt,
            **self._config.special_tokens,
            **arguments,
        }
        return self._template_for(arguments).render(messages, variables)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; an id without a token gives none."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it, such as `Ġthe`; None for an id without one."""
        return self._backend.id_to_token(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the id out."""
        return token_id in self._special_ids

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            if len(text) <= MAX_QUICK_CHARS:
                encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
            else:
                (encoding,) = self._backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )
            return tuple(encoding.ids)
        except (TypeError, UnicodeEncodeError) as error:  # of a text with half a surrogate pair
            raise RequestError(f"the text is not valid Unicode: {error}", "text") from error

    def _missing_bos(self) -> tuple[int, ...]:
        """The first id of every plain prompt if tokenizer.json should add it and does not."""
        if not self._config.add_bos:
            return ()
        token = self._config.bos_token
        bos_id = None if token is None else self._backend.token_to_id(token)
        if bos_id is None:
            raise BundleError(
                f"tokenizer_config.json: add_bos is true but bos_token {token!r} is no token"
            )
        return () if self._encode("", True)[:1] == (bos_id,) else (bos_id,)

    def _template_for(self, arguments: Mapping[str, Any]) -> ChatTemplate:
        if arguments.get("tools") and _TOOL_USE in self._templates:
            return self._templates[_TOOL_USE]
        if _DEFAULT not in self._templates:
            raise PreconditionError(
                "this bundle has no chat template (chat_template.jinja): its checkpoint has none; "
                "send the prompt as text",
                "messages",
            )
        return self._templates[_DEFAULT]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {path}: {error}; build the bundle again") from error


def _read_config(folder: Path) -> TokenizerConfig:
    path = folder / "tokenizer_config.json"
    try:
        plain = json.loads(_read(path))
        special_tokens = {str(k): str(v) for k, v in plain["special_tokens"].items()}
        bos_token, add_bos = plain["bos_token"], plain["add_bos"]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} is damaged: {error!r}; build the bundle again") from error
    if not isinstance(add_bos, bool):
        raise BundleError(f"{path}: add_bos is {add_bos!r}, wanted true or false")
    if not isinstance(bos_token, str | None):
        raise BundleError(f"{path}: bos_token is {bos_token!r}, wanted text or null")
    return TokenizerConfig(bos_token, add_bos, special_tokens)


def _read_templates(folder: Path) -> dict[str, ChatTemplate]:
    templates = {}
    for path in sorted(folder.glob("chat_template*.jinja")):
        name = path.name.removeprefix("chat_template").removesuffix(".jinja").removeprefix(".")
        templates[name or _DEFAULT] = ChatTemplate(_read(path), path.name)
    return templates
