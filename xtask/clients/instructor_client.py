import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

from common import KEY, MODEL, QUESTION, URL, check, report

messages = [{"role": "user", "content": QUESTION}]


class Answer(BaseModel):
    # Without this the schema permits further properties, and the tiny model writes them without end.
    model_config = ConfigDict(extra="forbid")

    is_true: bool


def client(**options):
    return instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), **options)


def tools():
    answer = client().chat.completions.create(model=MODEL, messages=messages, response_model=Answer)
    check(isinstance(answer, Answer), answer)


def streamed():
    parts = client().chat.completions.create_partial(
        model=MODEL, messages=messages, response_model=Answer
    )
    check(list(parts)[-1].is_true is not None, "no parts")


def structured():
    answer = client(mode=instructor.Mode.JSON_SCHEMA).chat.completions.create(
        model=MODEL, messages=messages, response_model=Answer
    )
    check(isinstance(answer, Answer), answer)


report("instructor", streamed=streamed, tools=tools, structured=structured)
