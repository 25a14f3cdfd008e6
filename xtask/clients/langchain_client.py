from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, add, check, report

# Greedy, because random arguments sometimes have no end.
model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, temperature=0)


class Answer(BaseModel):
    is_true: bool


def plain():
    answer = model.invoke(QUESTION)
    check(answer.content and answer.usage_metadata["output_tokens"], answer)


def streamed():
    parts = list(model.stream(QUESTION))
    check(len(parts) > 1 and "".join(part.content for part in parts), parts)


def tools():
    check(model.bind_tools([tool(add)]).invoke(QUESTION) is not None, "no answer")
    answer = model.bind_tools([tool(add)], tool_choice="required").invoke(QUESTION)
    check(set(answer.tool_calls[0]["args"]) == {"a", "b"}, answer)


def structured():
    answer = model.with_structured_output(Answer).invoke(QUESTION)
    check(isinstance(answer, Answer), answer)


report("langchain-openai", plain=plain, streamed=streamed, tools=tools, structured=structured)
