import json

from openai import OpenAI
import openai
from pydantic import BaseModel, Field

from common import KEY, MODEL, QUESTION, URL, check, report

client = OpenAI(base_url=URL, api_key=KEY)


class Sum(BaseModel):
    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


class Answer(BaseModel):
    is_true: bool


tool = {
    "type": "function",
    "name": "Sum",
    "description": "Adds two numbers.",
    "parameters": openai.pydantic_function_tool(Sum)["function"]["parameters"],
    "strict": True,
}


def plain():
    answer = client.responses.create(
        model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=30, reasoning={"effort": "low"}
    )
    check(answer.output_text and answer.usage.total_tokens and not answer.store, answer)
    try:
        client.responses.create(model=MODEL, input=QUESTION, previous_response_id=answer.id)
    except openai.BadRequestError as e:
        check(e.body["param"] == "previous_response_id", e)
    else:
        raise AssertionError("a response was stored")


def streamed():
    # The client raises an error at the length limit, which an answer with a format does not reach.
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Answer) as stream:
        events = list(stream)
        answer = stream.get_final_response()
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    check(deltas and deltas == answer.output_text and answer.output_parsed, events)
    check([e.sequence_number for e in events] == list(range(len(events))), events)


def tools():
    answer = client.responses.create(
        model=MODEL, input=QUESTION, tools=[tool], tool_choice="required"
    )
    call = answer.output[0]
    check(call.type == "function_call" and Sum.model_validate_json(call.arguments), answer)
    # The items go back as the client has them.
    again = [{"role": "user", "content": QUESTION}, *answer.output]
    again.append({"type": "function_call_output", "call_id": call.call_id, "output": json.dumps(3)})
    answer = client.responses.create(model=MODEL, input=again, tools=[tool], max_output_tokens=20)
    check(answer.status in ("completed", "incomplete"), answer)


def structured():
    answer = client.responses.parse(model=MODEL, input=QUESTION, text_format=Answer)
    check(isinstance(answer.output_parsed, Answer), answer)


report("openai", plain=plain, streamed=streamed, tools=tools, structured=structured)
