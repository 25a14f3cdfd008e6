import json

from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, add, check, report

messages = [UserMessage(content=QUESTION, source="user")]


def client():
    return OpenAIChatCompletionClient(model=MODEL, base_url=URL, api_key=KEY)


class Answer(BaseModel):
    is_true: bool


async def plain():
    result = await client().create(messages)
    check(result.content and result.usage.completion_tokens, result)


async def streamed():
    parts = [part async for part in client().create_stream(messages)]
    check(len(parts) > 2 and parts[-1].content, parts)


async def tools():
    tool = FunctionTool(add, description="Adds two numbers.", strict=True)
    check(await client().create(messages, tools=[tool]), "no answer")
    result = await client().create(messages, tools=[tool], tool_choice="required")
    arguments = json.loads(result.content[0].arguments)
    check(await tool.run_json(arguments, CancellationToken()) is not None, result)


async def structured():
    result = await client().create(messages, json_output=Answer)
    check(Answer.model_validate_json(result.content), result)


report("autogen-ext", plain=plain, streamed=streamed, tools=tools, structured=structured)
