"""Text: token ids against transformers, chat templates against transformers, streaming against whole
decoding, stop strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ingot.runtime.text import (
    STOP_STRINGS_MAX,
    StopMatcher,
    StreamDecoder,
    TextCodec,
    TextError,
    TextFacts,
    check_stops,
    text_facts,
)
from support.checkpoints import PARAGRAPH, TEMPLATE, make_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

KINDS = ["llama", "gpt2", "llama-bpe", "qwen2", "smollm"]
TOKENIZERS = {kind: make_tokenizer(kind) for kind in KINDS}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
BOS = 0


def codec_of(
    kind: str = "gpt2",
    template: str | None = None,
    *,
    add_bos: bool = False,
    special: Mapping[str, str] = SPECIAL,
) -> TextCodec:
    return TextCodec(TOKENIZERS[kind].to_str(), template, TextFacts(special, add_bos, {}), BOS)


CODECS = {kind: codec_of(kind) for kind in KINDS}


# --- prompts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_encode_is_what_transformers_gives(kind: str) -> None:
    """Goal: a plain prompt has the ids that a checkpoint's own tokenizer gives, bos included where it
    belongs.
    """
    theirs = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[kind], bos_token="<s>", eos_token="</s>")
    ours = codec_of(kind, add_bos=kind == "llama")
    for text in ["The harbour", " two  spaces\n\n", "</s> inside", "港口 😀", "", *PARAGRAPH.splitlines()]:
        assert ours.encode(text) == theirs(text)["input_ids"], text


def test_bos_is_not_doubled() -> None:
    """Goal: a prompt that already begins with bos gets no second one; an empty prompt gets exactly one."""
    codec = codec_of(add_bos=True)
    assert codec.encode("<s>ship") == codec.encode("ship")
    assert codec.encode("ship").count(BOS) == 1
    assert codec.encode("") == [BOS]
    assert codec_of(add_bos=False).encode("") == []


def test_truncation_and_padding_of_the_file_are_off() -> None:
    """Goal: a tokenizer.json that truncates or pads never does so here."""
    tokenizer = Tokenizer.from_str(TOKENIZERS["gpt2"].to_str())
    whole = codec_of().encode(PARAGRAPH)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=2000)
    codec = TextCodec(tokenizer.to_str(), None, TextFacts({}, False, {}), None)
    assert codec.encode(PARAGRAPH) == whole
    assert len(whole) > 5


def test_a_plan_without_texts_says_so() -> None:
    """Goal: text without a tokenizer and chat without a template are refused, and so is text that is no
    Unicode.
    """
    nothing = TextCodec(None, None, text_facts(None), None)
    with pytest.raises(TextError, match="no tokenizer"):
        nothing.encode("a")
    with pytest.raises(TextError, match="no chat template"):
        nothing.render([{"role": "user", "content": "a"}])
    with pytest.raises(TextError, match="lone surrogate at character 1"):
        codec_of().encode("a\ud800")
    with pytest.raises(TextError, match="tokenizer cannot be loaded"):
        TextCodec("{}", None, TextFacts({}, False, {}), None).encode("a")


# --- chat templates -----------------------------------------------------------------------------------------

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "Year: " + date_string + "\n" + system_message }}
{%- if tools is not none %}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
SMOLLM3 = """
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
  {%- if message.role == "system" %}{% continue %}{% endif %}
  {%- set ns.last = loop.index0 %}
  {%- if message.role == "assistant" %}
    {% generation %}
    {{ message.content + "<|im_end|>" }}
    {% endgeneration %}
  {%- else %}
    {{ "<|im_start|>" + message.role + "\n" + message.content }}
  {%- endif %}
  {%- if message.stop %}{% break %}{% endif %}
{%- endfor %}
{{ ns.last }} {{ enable_thinking | default(true) }}
"""
CONVERSATION = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
    {"role": "user", "content": "  Ahoy 港 "},
    {"role": "assistant", "content": "Ahoy!", "tool_calls": None},
    {"role": "user", "content": "Now?"},
]
TOOLS = [
    {"type": "function", "function": {"name": "tide", "parameters": {"höhe": [1, 2.5, None], "a": "<&>'"}}}
]


@pytest.mark.parametrize(
    "template", [TEMPLATE, MISTRAL, LLAMA3, SMOLLM3], ids=["chatml", "mistral", "llama3", "smollm3"]
)
@pytest.mark.parametrize(
    "options", [{}, {"tools": TOOLS}, {"enable_thinking": False}], ids=["", "tools", "option"]
)
@pytest.mark.parametrize("begin", [0, 1], ids=["system", "no-system"])
def test_templates_render_as_in_transformers(template: str, options: dict[str, Any], begin: int) -> None:
    """Goal: the prompt of a chat, as text and as ids, is the one that apply_chat_template gives."""
    if template == MISTRAL and begin == 0:
        with pytest.raises(TextError, match="roles must alternate"):
            codec_of(template=MISTRAL).render(CONVERSATION)
        return
    messages = CONVERSATION[begin:]
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS["llama"], bos_token="<s>", eos_token="</s>", chat_template=template
    )
    ours = codec_of("llama", template, add_bos=True)
    rendered = ours.render(messages, **options)
    assert rendered == theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **options
    )
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **options)
    assert ours.encode_rendered(rendered) == ids
    assert ids.count(BOS) <= 1, "the template wrote bos; the tokenizer must not write another"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content.x }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_a_template_is_sandboxed_and_fails_in_one_way(source: str) -> None:
    """Goal: whatever a template tries, the caller sees TextError and nothing of Python is reached."""
    with pytest.raises(TextError):
        codec_of(template=source).render([{"role": "user", "content": "a"}])


def test_a_template_with_a_syntax_error_is_refused() -> None:
    """Goal: the refusal names the template, once it is used."""
    with pytest.raises(TextError, match="chat template is not valid"):
        codec_of(template="{% if %}").render([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        [],
        {"role": "user", "content": "a"},
        ["a"],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": object()}],
    ],
)
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    """Goal: what is not a list of mappings with a role is refused before the template sees it."""
    with pytest.raises(TextError):
        codec_of(template=TEMPLATE).render(messages)


# --- streaming ----------------------------------------------------------------------------------------------

TEXTS = [PARAGRAPH, "😀🚢⚓" * 40, "a\n\n  b", "é" * 60, " leading", "港の長は毎日", "�"]


def stream(codec: TextCodec, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(codec)
    return [*(decoder.push(token) for token in ids), decoder.finish()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_on_text(kind: str, text: str) -> None:
    """Goal: streamed pieces of real text are its decoding, and none of them ends within a character."""
    codec = CODECS[kind]
    ids = codec.encode(text)
    pieces = stream(codec, ids)
    assert "".join(pieces) == codec.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_pieces_add_up_on_any_tokens(kind: str, data: st.DataObject) -> None:
    """Goal: for any ids, broken bytes and special tokens included, all pieces together are the decoding of
    all ids.

    Method: ids are drawn with a bias to byte and special tokens; every prefix is checked: what was emitted so
    far begins the decoding of the whole, so nothing is ever taken back.
    """
    codec = CODECS[kind]
    size = codec.tokenizer.get_vocab_size()
    low = st.integers(0, 300)
    ids = data.draw(st.lists(st.one_of(low, low, st.integers(0, size - 1)), max_size=90))
    whole, emitted = codec.decode(ids), ""
    for piece in stream(codec, ids):
        emitted += piece
        assert whole.startswith(emitted)
    assert emitted == whole


def test_a_wrong_byte_does_not_change_what_was_sent() -> None:
    """Goal: the seeded violation: E2 82 AC is a euro sign until FF follows, which makes the decoder
    replace all four.
    """
    codec = CODECS["llama"]
    ids = [codec.tokenizer.token_to_id(f"<0x{byte}>") for byte in ("E2", "82", "AC", "FF")]
    assert codec.decode(ids[:3]) == "€"
    assert codec.decode(ids) == "\ufffd" * 4
    assert stream(codec, ids) == ["", "", "", "", "\ufffd" * 4]
    assert stream(codec, ids[:3]) == ["", "", "", "€"]


def test_a_character_of_several_tokens_comes_whole() -> None:
    """Goal: a byte-level token that ends within a character gives only what stands before it."""
    codec = CODECS["gpt2"]
    ids = codec.encode("x") + [codec.tokenizer.token_to_id(piece) for piece in ("â", "Ĥ", "¬")]
    assert stream(codec, ids) == ["x", "", "", "€", ""]


def test_the_window_stays_bounded() -> None:
    """Goal: a long answer decodes a bounded number of tokens for each new one."""
    codec = CODECS["llama-bpe"]
    decoder = StreamDecoder(codec)
    for token in codec.encode(PARAGRAPH * 5):
        decoder.push(token)
        assert len(decoder._window) <= 40


# --- stop strings -------------------------------------------------------------------------------------------


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the text ends by the rule, tried character by character: an oracle."""
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins)
    return None


@given(
    text=st.text("ab\n", max_size=40),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
@settings(max_examples=400, deadline=None)
@example(text="abab", stops=["abab", "ba"], cuts=[])
@example(text="aab", stops=["ab"], cuts=[1, 2])
def test_stop_strings_do_not_depend_on_the_cuts(text: str, stops: list[str], cuts: list[int]) -> None:
    """Goal: however the text is cut into pieces, what comes out ends where the oracle says, and is never
    longer.
    """
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher = StopMatcher(stops)
    out = "".join(matcher.push(text[a:b]) for a, b in pairwise(borders))
    at = first_stop(text, stops)
    if at is None:
        assert matcher.matched is None
        assert out + matcher.finish() == text
    else:
        assert matcher.matched is not None
        assert out == text[:at]


def test_text_is_held_back_only_while_it_could_be_a_stop() -> None:
    """Goal: a beginning of a stop string waits, and comes out with the first character that rules it out."""
    matcher = StopMatcher(["\n\nUser:"])
    pieces = [matcher.push(piece) for piece in ("Hi", "\n", "\nUs", "a", "\n\nUser", ":", "never")]
    assert pieces == ["Hi", "", "", "\n\nUsa", "", "", ""]
    assert matcher.matched == "\n\nUser:"


@pytest.mark.parametrize("stop", ["", ["a", ""], ["x"] * (STOP_STRINGS_MAX + 1), "x" * 2000, [1]])
def test_stop_strings_have_limits(stop: Any) -> None:
    """Goal: an empty, overlong or non-text stop string is refused, and so are too many."""
    with pytest.raises(TextError):
        check_stops(stop)


def test_facts_come_from_meta() -> None:
    """Goal: META's text record is read; a META without one means nothing is known."""
    meta = json.dumps({"text": {"special": SPECIAL, "add_bos": True, "generation": {"top_k": 4}}})
    assert text_facts(meta) == TextFacts(SPECIAL, True, {"top_k": 4})
    assert text_facts("{}") == TextFacts({}, False, {})
