"""Prompts equal those of transformers, character for character and token for token."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from orchestrator.errors import UserError
from orchestrator.models import EMBEDDED_DIR, ResolvedModel, resolve
from orchestrator.prompts import Renderer
from orchestrator.tasks import registry

# What templates in the field use: loops, namespaces, filters, white space control, special tokens, tool branches.
TEMPLATES = {
    "thinking": """{%- if messages[0].role == 'system' %}
        {{- '<|user|>' + messages[0].content + '<|end|>\n' }}
    {%- endif %}
    {%- set ns = namespace(last=messages|length - 1) %}
    {%- for message in messages[::-1] %}{%- if message.role == 'user' and not loop.first %}{%- break %}{%- endif %}
    {%- endfor %}
    {% for message in messages %}
        {%- if message.role != 'system' %}{{ '<|user|>' + message.content|trim + eos_token }}{% endif %}
    {% endfor %}
    {%- if tools %}{{ tools | tojson }}{% endif %}
    {%- if add_generation_prompt %}<|assistant|>
{%- if enable_thinking is defined and enable_thinking is false %}</think>{%- endif %}{% endif %}""",
    "generation": "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "{% endgeneration %}{% else %}{{ m['content'] | tojson }}{% endif %}{% endfor %}{{ eos_token }}",
}
MESSAGES = [
    {"role": "system", "content": "Wx"},
    {"role": "user", "content": "  Wx57n31R8A58\n<ü>  "},
    {"role": "assistant", "content": "R00 & <b>"},
    {"role": "user", "content": "Pa19"},
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDED_DIR / "reasoner", tmp_path / "copy"))


def at(directory: Path) -> ResolvedModel:
    return replace(resolve("embedded:reasoner"), path_on_disk=directory)


def test_reasoner_prompts_equal_transformers() -> None:
    model = resolve("embedded:reasoner")
    tokenizer = AutoTokenizer.from_pretrained(model.path_on_disk)
    renderer = Renderer(model)
    for problem in (*registry.get("reasoner_w").problems(8), *registry.get("reasoner_p").problems(8)):
        messages = [dict(message) for message in problem.messages]
        rendered = renderer.render(problem.messages)
        assert rendered.text == tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert list(rendered.token_ids) == ids
        assert rendered.sha256 == hashlib.sha256(rendered.text.encode()).hexdigest()


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(copy: Path, name: str) -> None:
    (copy / "chat_template.jinja").write_text(TEMPLATES[name], encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(copy)
    rendered = Renderer(at(copy)).render(MESSAGES)
    assert rendered.text == tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert list(rendered.token_ids) == ids


def test_equal_messages_are_rendered_once() -> None:
    renderer = Renderer(resolve("embedded:reasoner"))
    first = renderer.render([{"role": "user", "content": "Wx57"}])
    assert renderer.render([{"content": "Wx57", "role": "user"}]) is first
    assert len(renderer) == 1


def test_a_refusing_template_is_a_users_error(copy: Path) -> None:
    template = "{{ raise_exception('system first') }}"
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=r"refuses this prompt: system first.*begins: 'Wx'"):
        Renderer(at(copy)).render(MESSAGES)


def test_a_date_in_a_prompt_is_refused(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ strftime_now('%d') }}")
    with pytest.raises(UserError, match="strftime_now"):
        Renderer(at(copy)).render(MESSAGES)


def test_a_missing_template_is_named(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    config = json.loads((copy / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="has no chat template"):
        Renderer(at(copy)).render(MESSAGES)
