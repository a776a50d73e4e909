"""The reasoner's 49 tokens: seven marks and one token a character, as a tokenizer.json that AutoTokenizer loads."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

PAD, USER, END, ASSISTANT, THINK = range(5)
SPECIAL = ("<|pad|>", "<|user|>", "<|end|>", "<|assistant|>")
VISIBLE = ("<think>", "</think>", "\\boxed{")  # ordinary added tokens: decoded text shows them
CHARACTERS = "0123456789ABCDEFGHIJabcdxnmRWP:,;+=>|@?}\n "
TOKENS = (*SPECIAL, *VISIBLE, *CHARACTERS)
IDS = {token: index for index, token in enumerate(TOKENS)}

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role']=='user' %}<|user|>{{ m['content'] }}<|end|>"
    "{% elif m['role']=='assistant' %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def encode(text: str) -> list[int]:
    """Token ids of text made of CHARACTERS. Raises KeyError at any other character."""
    return [IDS[character] for character in text]


def prompt_ids(question: str) -> list[int]:
    """What the chat template renders for one user turn."""
    return [USER, *encode(question), END, ASSISTANT, THINK]


def answer_ids(digits: str) -> list[int]:
    """The end of a generation: `</think>\\boxed{digits}<|end|>`."""
    return [IDS["</think>"], IDS["\\boxed{"], *encode(digits), IDS["}"], END]


def write_tokenizer(directory: Path, window: int) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token=TOKENS[PAD]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in VISIBLE])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TOKENS[END],
        "pad_token": TOKENS[PAD],
        "model_max_length": window,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
