from agents import (
    Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, add, check, report

set_tracing_disabled(True)


def model():
    return OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=URL, api_key=KEY))


class Answer(BaseModel):
    is_true: bool


async def plain():
    result = await Runner.run(Agent(name="a", instructions="Be short.", model=model()), QUESTION)
    check(result.final_output, result)


async def streamed():
    result = Runner.run_streamed(Agent(name="a", model=model()), QUESTION)
    events = [event async for event in result.stream_events()]
    check(len(events) > 3 and result.final_output, events)


async def tools():
    agent = Agent(
        name="a", model=model(), tools=[function_tool(add)],
        model_settings=ModelSettings(tool_choice="required"),
        tool_use_behavior="stop_on_first_tool",
    )
    result = await Runner.run(agent, QUESTION)
    check(int(result.final_output) is not None, result)


async def structured():
    result = await Runner.run(Agent(name="a", model=model(), output_type=Answer), QUESTION)
    check(isinstance(result.final_output, Answer), result)


report("openai-agents", plain=plain, streamed=streamed, tools=tools, structured=structured)
