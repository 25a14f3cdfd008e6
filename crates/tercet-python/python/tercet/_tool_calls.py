"""Calls of tools in the answers of language models.

Two formats are read, as by `tercet serve`: JSON between `<tool_call>` tags (Hermes, Qwen), and an
answer that consists only of JSON objects (Llama 3). Calls of unknown tools, calls in thoughts and
incomplete objects are text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from typing import Any

_THOUGHT = re.compile(r"\A\s*(?:<think(?:ing)?>)?.*</think(?:ing)?>", re.DOTALL)
_OPEN = "<tool_call>"
_DECODER = json.JSONDecoder()


def _call(found: Any, names: Collection[str]) -> dict[str, Any] | None:
    """The call that a JSON value is, as OpenAI's API writes it."""
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", ...))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    function = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{uuid.uuid4().hex[:16]}", "type": "function", "function": function}


def _value(text: str, at: int) -> tuple[Any, int] | None:
    """The JSON value at a place of a text, and its end."""
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def read(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """The calls of these tools in an answer, in their order."""
    thought = _THOUGHT.match(text)
    text = text[thought.end() :] if thought else text
    calls = []
    if _OPEN in text:
        for tag in re.finditer(re.escape(_OPEN), text):
            value = _value(text, tag.end())
            call = value and _call(value[0], names)
            if call:
                calls.append(call)
        return calls
    at = 0
    text = text.strip().removeprefix("<|python_tag|>").rstrip("; \n")
    while at < len(text):
        value = _value(text, at)
        call = value and _call(value[0], names)
        if not value or not call:
            return []
        calls.append(call)
        at = value[1]
        while at < len(text) and (text[at].isspace() or text[at] == ";"):
            at += 1
    return calls
