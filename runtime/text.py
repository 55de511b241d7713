"""Text around a plan: prompts to token ids, chat messages to prompts, token ids to a stream of text, stop
strings.

Everything comes out of the plan: its tokenizer (tokenizer.json), its chat template, and META's `text`. What
is streamed is never taken back: a piece is emitted once no later token can change it, and the pieces add up
to the decoding of all tokens. Only the first use imports `tokenizers` and `jinja2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 1024
MESSAGES_MAX = 100_000
_WINDOW_TOKENS = 24  # tokens decoded again for each new one; the window is cut back to the last of them
_TAIL_TOKENS = 8
_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TextError(Exception):
    """A prompt, a message list or a stop string that cannot be used, or a plan without tokenizer or chat
    template.
    """


@dataclass(frozen=True, slots=True)
class TextFacts:
    """META's `text`: special tokens by role (`bos_token`, ...), whether plain prompts begin with bos,
    generation config.
    """

    special: Mapping[str, str]
    add_bos: bool
    generation: Mapping[str, Any]


def text_facts(meta: str | None) -> TextFacts:
    """The text part of a plan's META section (JSON). A key that is absent means none."""
    text = json.loads(meta).get("text", {}) if meta else {}
    return TextFacts(
        special=dict(text.get("special", {})),
        add_bos=bool(text.get("add_bos", False)),
        generation=dict(text.get("generation", {})),
    )


class TextCodec:
    """A plan's tokenizer and chat template. Both are optional: a plan without a tokenizer takes and gives
    token ids.
    """

    def __init__(
        self, tokenizer: str | None, template: str | None, facts: TextFacts, bos_token: int | None
    ) -> None:
        self.facts = facts
        self._tokenizer_json = tokenizer
        self._template_source = template
        self._bos_token = bos_token
        self._tokenizer: Tokenizer | None = None
        self._template: Template | None = None
        self._special_ids: frozenset[int] = frozenset()
        self._byte_ids: frozenset[int] = frozenset()

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer_json is not None

    @property
    def has_template(self) -> bool:
        return self._template_source is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, without any truncation or padding that its file may carry. Raises TextError when
        there is none.
        """
        if self._tokenizer is None:
            if self._tokenizer_json is None:
                raise TextError("the plan has no tokenizer: give the prompt as token ids")
            from tokenizers import Tokenizer

            try:
                tokenizer = Tokenizer.from_str(self._tokenizer_json)
            except Exception:  # the library raises plain Exception, with a text of its own
                raise TextError(
                    "the plan's tokenizer cannot be loaded: rebuild the plan with this release"
                ) from None
            tokenizer.no_truncation()
            tokenizer.no_padding()
            added = tokenizer.get_added_tokens_decoder()
            self._special_ids = frozenset(i for i, token in added.items() if token.special)
            self._byte_ids = _byte_ids(tokenizer, self._tokenizer_json)
            self._tokenizer = tokenizer
        return self._tokenizer

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a plain prompt; bos comes first where META says so, and never twice."""
        ids = self._encode(prompt)
        bos = self._bos_token
        if self.facts.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def encode_rendered(self, prompt: str) -> list[int]:
        """Token ids of a rendered chat: the template wrote whatever special tokens belong there, bos
        included.
        """
        return self._encode(prompt)

    def _encode(self, prompt: str) -> list[int]:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"the prompt has a lone surrogate at character {error.start}: it must be valid Unicode"
            ) from None
        return list(self.tokenizer.encode(prompt, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def token_text(self, token: int) -> str | None:
        """A token as the vocabulary writes it, or None for an id that it does not have."""
        text = self.tokenizer.id_to_token(token)
        return None if text is None else str(text)

    def is_special(self, token: int) -> bool:
        """Whether `decode` leaves the token out."""
        _ = self.tokenizer
        return token in self._special_ids

    def is_byte(self, token: int) -> bool:
        """Whether the token is one byte of a byte-fallback vocabulary, `<0xE2>`."""
        _ = self.tokenizer
        return token in self._byte_ids

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The chat template applied to messages, ready for the model's answer (`add_generation_prompt`).

        `variables` go to the template as they are (such as `tools`). Raises TextError for a plan without a
        template, for messages that are not JSON-able mappings with a role, and for what the template itself
        refuses.
        """
        if self._template is None:
            if self._template_source is None:
                raise TextError("the plan has no chat template: use generate with a plain prompt")
            self._template = compile_template(self._template_source)
        from jinja2.exceptions import TemplateError

        values = {
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            **self.facts.special,
            **variables,
        }
        try:
            return self._template.render(messages=plain_messages(messages), **values)
        except TemplateError as error:
            raise TextError(f"the chat template refuses these messages: {error.message}") from None
        except TextError:
            raise
        except Exception as error:  # a template is a program: whatever it runs into is its refusal
            kind = type(error).__name__
            raise TextError(f"the chat template cannot render these messages ({kind}: {error})") from None


def _byte_ids(tokenizer: Tokenizer, source: str) -> frozenset[int]:
    """Ids that the ByteFallback decoder gathers into runs; empty for a tokenizer without one."""
    if '"ByteFallback"' not in json.dumps(json.loads(source).get("decoder")):
        return frozenset()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return frozenset(i for token, i in vocabulary.items() if _BYTE_TOKEN.fullmatch(token))


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A deep copy of the messages made of JSON types only, without keys whose value is None. Raises
    TextError.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TextError("messages must be a list of mappings with `role` and `content`")
    if not 1 <= len(messages) <= MESSAGES_MAX:
        raise TextError(f"{len(messages)} messages were given: 1 to {MESSAGES_MAX} are allowed")
    plain: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TextError(f"message {i} is not a mapping with a `role` that is text")
        try:
            copy = json.loads(json.dumps(dict(message)))
        except (TypeError, ValueError, RecursionError):
            raise TextError(f"message {i} holds a value that JSON cannot express") from None
        plain.append({key: value for key, value in copy.items() if value is not None})
    return plain


# --- chat templates -----------------------------------------------------------------------------------------


def _raise_exception(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter it does not escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def compile_template(source: str) -> Template:
    """A chat template in the environment that checkpoints' templates are written for (transformers'
    apply_chat_template).

    Sandboxed: no attribute of Python's internals is reachable and nothing is mutable. `{% generation %}`
    blocks, which mark the assistant's part for training, render as what they hold. Raises TextError for a
    syntax error.
    """
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %} ... {% endgeneration %}`: its body is a scope of its own, as a call block is."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Callable[[], str]) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise TextError(f"the plan's chat template is not valid: {error.message}") from None


# --- streaming ----------------------------------------------------------------------------------------------


class StreamDecoder:
    """Turns token ids into text as they come. `push` gives what has become certain, `finish` the rest.

    All pieces together are `TextCodec.decode` of all tokens. Held back are: bytes at the end that are not yet
    a character, and the current run of byte-fallback tokens, because one wrong byte makes the decoder replace
    the whole run. Only a window of the last tokens is decoded again for each new one.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._window: list[int] = []
        self._sent = 0  # characters of decode(window) that were emitted

    def push(self, token: int) -> str:
        """The text that this token makes certain; often its own, sometimes empty."""
        if self._codec.is_special(token):
            return ""
        self._window.append(token)
        if self._codec.is_byte(token):
            return ""
        text = self._codec.decode(self._window)
        piece = self._emit(text.rstrip(_REPLACEMENT))
        if self._sent == len(text) and len(self._window) >= _WINDOW_TOKENS:
            self._shorten(text)
        return piece

    def finish(self) -> str:
        """What was held back, as the decoder writes it: bytes that never became a character are replaced."""
        piece = self._emit(self._codec.decode(self._window)) if self._window else ""
        self._window, self._sent = [], 0
        return piece

    def _emit(self, text: str) -> str:
        piece = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return piece

    def _shorten(self, text: str) -> None:
        """Drops all but the last tokens, if these alone decode to the end of the text: then later text
        follows alike.
        """
        tail = self._window[-_TAIL_TOKENS:]
        tail_text = self._codec.decode(tail)
        if tail_text and _REPLACEMENT not in tail_text and text.endswith(tail_text):
            self._window, self._sent = tail, len(tail_text)


def check_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple. Raises TextError for an empty one and over the limits on their number and
    length.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOP_STRINGS_MAX:
        raise TextError(f"{len(stops)} stop strings were given: at most {STOP_STRINGS_MAX} are allowed")
    for text in stops:
        if not isinstance(text, str) or not 1 <= len(text) <= STOP_STRING_CHARACTERS_MAX:
            raise TextError(f"a stop string must be text of 1 to {STOP_STRING_CHARACTERS_MAX} characters")
    return stops


class StopMatcher:
    """Finds the first stop string in text that comes in pieces, wherever the pieces are cut.

    The stop string that is complete first wins, the longest of those that end together. Text is held back
    only while its end could still become a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, piece: str) -> str:
        """Text that is certain to lie before any stop string. After a match everything is swallowed."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` and is shorter than it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
