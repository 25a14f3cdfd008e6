import json

import litellm
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, check, report

messages = [{"role": "user", "content": QUESTION}]
base = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "messages": messages}
number = {"type": "integer"}
tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"],
        },
    },
}


class Answer(BaseModel):
    is_true: bool


def plain():
    answer = litellm.completion(**base)
    check(answer.choices[0].message.content, answer)


def streamed():
    parts = list(litellm.completion(**base, stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    check(len(parts) > 1 and text, parts)


def tools():
    check(litellm.completion(**base, tools=[tool]).choices, "no answer")
    answer = litellm.completion(**base, tools=[tool], tool_choice="required")
    call = answer.choices[0].message.tool_calls[0]
    check(set(json.loads(call.function.arguments)) >= {"a", "b"}, answer)


def structured():
    answer = litellm.completion(**base, response_format=Answer)
    check(Answer.model_validate_json(answer.choices[0].message.content), answer)


report("litellm", plain=plain, streamed=streamed, tools=tools, structured=structured)
