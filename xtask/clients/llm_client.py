import json

import llm
from llm.default_plugins.openai_models import Chat

from common import KEY, MODEL, QUESTION, URL, add, check, report


def model():
    options = {"model_name": MODEL, "api_base": URL}
    chat = Chat("tercet", **options, supports_tools=True, supports_schema=True)
    chat.key = KEY
    return chat


def plain():
    check(model().prompt(QUESTION, stream=False).text(), "no text")


def streamed():
    parts = list(model().prompt(QUESTION))
    check(len(parts) > 1 and "".join(parts), parts)


def tools():
    # This client cannot require a call.
    response = model().prompt(QUESTION, tools=[llm.Tool.function(add)], stream=False)
    check(response.text() is not None, response)


def structured():
    schema = {
        "type": "object",
        "properties": {"is_true": {"type": "boolean"}},
        "required": ["is_true"],
        # The tiny model would add properties until the context is full.
        "additionalProperties": False,
    }
    response = model().prompt(QUESTION, schema=schema, stream=False)
    check(json.loads(response.text())["is_true"] in (True, False), response.text())


report("llm", plain=plain, streamed=streamed, tools=tools, structured=structured)
