import anthropic
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, check, report

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key=KEY)
messages = [{"role": "user", "content": QUESTION}]
# Greedy, because random answers are sometimes empty.
base = {"model": MODEL, "max_tokens": 400, "messages": messages, "extra_body": {"temperature": 0}}
number = {"type": "integer", "minimum": 0, "maximum": 99}
tool = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"],
        "additionalProperties": False,
    },
}


class Answer(BaseModel):
    is_true: bool


def plain():
    answer = client.messages.create(
        **base, system="Be brief.", stop_sequences=["@@"], thinking={"type": "enabled", "budget_tokens": 1024}
    )
    check(answer.content[0].text and answer.usage.output_tokens, answer)
    check(client.models.list().data[0].display_name, "no models")
    counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
    check(counted.input_tokens == answer.usage.input_tokens, counted)
    try:
        client.messages.create(**{**base, "messages": [{"role": "user", "content": [{"type": "image"}]}]})
    except anthropic.BadRequestError as e:
        check(e.body["error"]["type"] == "invalid_request_error", e)
    else:
        raise AssertionError("an image was accepted")


def streamed():
    with client.messages.stream(**base) as stream:
        text = "".join(stream.text_stream)
        answer = stream.get_final_message()
    check(text and text == answer.content[0].text and answer.stop_reason, answer)
    check(answer.usage.output_tokens, answer)


def tools():
    required = {"tools": [tool], "tool_choice": {"type": "any"}}
    answer = client.messages.create(**base, **required)
    call = answer.content[-1]
    check(answer.stop_reason == "tool_use" and set(call.input) == {"a", "b"}, answer)
    with client.messages.stream(**base, **required) as stream:
        check(set(stream.get_final_message().content[-1].input) == {"a", "b"}, answer)
    # The answer goes back as the client has it.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    again = [*messages, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=again, tools=[tool])
    check(answer.role == "assistant", answer)


def structured():
    answer = client.messages.parse(**base, output_format=Answer)
    check(isinstance(answer.parsed_output, Answer), answer)


report("anthropic", plain=plain, streamed=streamed, tools=tools, structured=structured)
