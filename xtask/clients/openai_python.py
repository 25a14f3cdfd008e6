from openai import OpenAI
import openai
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, check, report

client = OpenAI(base_url=URL, api_key=KEY)
messages = [{"role": "user", "content": QUESTION}]


class Sum(BaseModel):
    a: int
    b: int


class Answer(BaseModel):
    is_true: bool


def plain():
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    check(answer.choices[0].message.content and answer.usage.total_tokens, answer)


def streamed():
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(client.chat.completions.create(model=MODEL, messages=messages, **options))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    check(len(parts) > 2 and text and parts[-1].usage.completion_tokens, parts)


def tools():
    # The tool is strict, and the model chooses. `parse` raises an error at the length limit, `create` does not.
    tool = openai.pydantic_function_tool(Sum)
    auto = client.chat.completions.create(model=MODEL, messages=messages, tools=[tool], max_tokens=20)
    check(auto.choices[0].message, auto)
    answer = client.chat.completions.parse(
        model=MODEL, messages=messages, tools=[tool], tool_choice="required"
    )
    call = answer.choices[0].message.tool_calls[0]
    check(isinstance(call.function.parsed_arguments, Sum), call)
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    # The answer goes back as the client has it.
    again = [*messages, answer.choices[0].message, result]
    answer = client.chat.completions.create(model=MODEL, messages=again, tools=[tool], max_tokens=20)
    check(answer.choices[0].finish_reason, answer)


def structured():
    answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Answer)
    check(isinstance(answer.choices[0].message.parsed, Answer), answer)


report("openai", plain=plain, streamed=streamed, tools=tools, structured=structured)
