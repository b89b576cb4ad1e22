"""The tokenizer folder gives the checkpoint's own ids, and its templates compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from export.tokenizer_files import tokens_beyond, write_tokenizer
from omruntime.errors import ExportError
from tests.export.tiny import save_tokenizer, tiny_tokenizer

TEXTS = ("", "Hello", "  a <s> b</s>", "🦙", "new\nline")


def _loaded(folder: Path) -> PreTrainedTokenizerFast:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def _with_rstrip(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<s>", rstrip=True, special=True, normalized=False)])
    return tokenizer


def _metaspace(scheme: str) -> Callable[[Tokenizer], Tokenizer]:
    def change(_tokenizer: Tokenizer) -> Tokenizer:
        pieces = ["<unk>", "<s>", "</s>", "<pad>", "▁", *"Helo abnwi", "▁H"]
        vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        made = Tokenizer(models.BPE(vocab, [("▁", "H")], unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        return made

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer,
        _with_bos,
        _with_rstrip,
        *(_metaspace(s) for s in ("first", "always", "never")),
    ],
    ids=["plain", "bos", "rstrip", "first", "always", "never"],
)
def test_the_written_tokenizer_gives_the_same_ids(
    change: Callable[[Tokenizer], Tokenizer], tmp_path: Path
) -> None:
    """BL-13: added tokens with rstrip, Metaspace schemes, BOS for plain text."""
    save_tokenizer(tmp_path, change(tiny_tokenizer()))
    tokenizer = _loaded(tmp_path)
    write_tokenizer(tokenizer, tmp_path / "out", None)
    written = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in TEXTS:
        for add in (True, False):
            wanted = tokenizer(text, add_special_tokens=add)["input_ids"]
            assert written.encode(text, add_special_tokens=add).ids == wanted


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_gguf_file_decides_about_bos(add_bos: bool, tmp_path: Path) -> None:
    """BL-12: add_bos_token of the file, whatever transformers makes of it."""
    save_tokenizer(tmp_path, tiny_tokenizer() if add_bos else _with_bos(tiny_tokenizer()))
    write_tokenizer(_loaded(tmp_path), tmp_path / "out", add_bos)
    written = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert (written.encode("Hello").ids[0] == 1) is add_bos
    assert written.encode("", add_special_tokens=True).ids == ([1] if add_bos else [])
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["add_bos"] is add_bos
    assert config["special_tokens"]["bos_token"] == "<s>"


def _templates(folder: Path) -> dict[str, str]:
    tokenizer = _loaded(folder)
    write_tokenizer(tokenizer, folder / "out", None)
    return {path.name: path.read_text() for path in (folder / "out").glob("*.jinja")}


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


def test_a_template_file_is_used(tmp_path: Path) -> None:
    """BL-09 a."""
    save_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file\n")
    assert _templates(tmp_path) == {"chat_template.jinja": "from the file\n"}


def test_named_templates_are_kept_apart(tmp_path: Path) -> None:
    """BL-09 b."""
    save_tokenizer(tmp_path, chat_template=NAMED)
    assert _templates(tmp_path) == {"chat_template.jinja": "D", "chat_template.tool_use.jinja": "T"}


def test_the_template_file_wins_over_the_config(tmp_path: Path) -> None:
    """BL-09 c, as in transformers."""
    save_tokenizer(tmp_path, chat_template="from the config")
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert _templates(tmp_path) == {"chat_template.jinja": "from the file"}


def test_no_template_writes_none(tmp_path: Path) -> None:
    """BL-09 d."""
    save_tokenizer(tmp_path)
    assert _templates(tmp_path) == {}


def test_a_template_that_cannot_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    """BL-14."""
    save_tokenizer(tmp_path, chat_template="fine\n{% for m in messages %}\n{% endfour %}")
    with pytest.raises(ExportError, match=r"'default' does not compile: line 3: .*endfour"):
        write_tokenizer(_loaded(tmp_path), tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("template", [5, "\ud800", "{{ (10 ** 5000) | string }}"])
def test_a_template_that_no_compiler_takes_is_refused(template: object, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, chat_template=template)
    with pytest.raises(ExportError, match="chat template 'default' does not compile: "):
        write_tokenizer(_loaded(tmp_path), tmp_path / "out", None)


@pytest.mark.parametrize("name", ["", "a/b", "../../../x"])
def test_a_template_whose_name_no_file_can_have_is_refused(name: str, tmp_path: Path) -> None:
    """Without a name it would stand in for the default one."""
    save_tokenizer(tmp_path, chat_template=[*NAMED, {"name": name, "template": "x"}])
    with pytest.raises(ExportError, match=r"has the name .* wanted letters"):
        write_tokenizer(_loaded(tmp_path), tmp_path / "out", None)


def test_the_constructs_of_transformers_compile(tmp_path: Path) -> None:
    """BL-14: loop controls, the generation tag, functions that only exist when rendering."""
    template = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%d %b %Y') }}"
    )
    save_tokenizer(tmp_path, chat_template=template)
    assert _templates(tmp_path) == {"chat_template.jinja": template}


def test_tokens_without_an_embedding_are_named(tmp_path: Path) -> None:
    """BL-08."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<|user_x|>", normalized=False)])
    save_tokenizer(tmp_path, tokenizer)
    loaded = _loaded(tmp_path)
    assert tokens_beyond(loaded, vocab_size=259) == ("<|user_x|> (259)",)
    assert tokens_beyond(loaded, vocab_size=260) == ()


def test_a_tokenizer_that_would_give_other_ids_is_refused(tmp_path: Path) -> None:
    """The proof itself: what is written is compared with what the checkpoint says."""
    save_tokenizer(tmp_path)

    class Shifted(PreTrainedTokenizerFast):
        def __call__(self, *args: object, **kwargs: object) -> dict[str, list[int]]:
            ids = super().__call__(*args, **kwargs)["input_ids"]
            return {"input_ids": [i + 1 for i in ids]}

    tokenizer = Shifted.from_pretrained(tmp_path)
    with pytest.raises(ExportError, match=r"tokenizer\.json encodes 'Hello' as"):
        write_tokenizer(tokenizer, tmp_path / "out", None)


def test_a_tokenizer_that_cannot_encode_some_text_is_refused(tmp_path: Path) -> None:
    """Served, it would fail requests by their letters."""
    words = Tokenizer(models.WordLevel({"<s>": 1, "</s>": 2, "a": 3}, unk_token="<unk>"))
    save_tokenizer(tmp_path, words, pad_token=None)
    with pytest.raises(ExportError, match=r"tokenizer cannot encode 'Hello': .*UNK.*"):
        write_tokenizer(_loaded(tmp_path), tmp_path / "out", None)
