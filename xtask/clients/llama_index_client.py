from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from common import KEY, MODEL, QUESTION, URL, add, check, report

options = {"model": MODEL, "api_base": URL, "api_key": KEY, "is_chat_model": True}
model = OpenAILike(**options)
calling = OpenAILike(**options, is_function_calling_model=True)
messages = [ChatMessage(role="user", content=QUESTION)]


class Answer(BaseModel):
    is_true: bool


def plain():
    check(str(model.chat(messages)), "no text")
    check(str(model.complete(QUESTION)), "no text")


def streamed():
    parts = list(model.stream_chat(messages))
    check(len(parts) > 1 and parts[-1].message.content, parts)


def tools():
    tool = FunctionTool.from_defaults(add)
    check(calling.chat_with_tools([tool], user_msg=QUESTION), "no answer")
    answer = calling.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    call = calling.get_tool_calls_from_response(answer)[0]
    check(set(call.tool_kwargs) == {"a", "b"}, call)


def structured():
    answer = calling.as_structured_llm(Answer).complete(QUESTION)
    check(isinstance(answer.raw, Answer), answer)


report(
    "llama-index-llms-openai-like",
    plain=plain, streamed=streamed, tools=tools, structured=structured,
)
