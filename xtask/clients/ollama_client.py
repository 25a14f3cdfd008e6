import ollama
from pydantic import BaseModel

from common import QUESTION, URL, add, check, report

client = ollama.Client(host=URL.removesuffix("/v1"))
# The name as the server lists it.
MODEL = client.list().models[0].model
messages = [{"role": "user", "content": QUESTION}]
options = {"num_predict": 90}


class Answer(BaseModel, extra="forbid"):
    is_true: bool


def plain():
    answer = client.chat(model=MODEL, messages=messages, options=options, keep_alive="5m")
    check(answer.message.content and answer.done and answer.eval_count and answer.total_duration, answer)
    answer = client.generate(model=MODEL, prompt=QUESTION, system="Be brief.", options=options)
    check(answer.response and answer.prompt_eval_count, answer)
    shown = client.show(MODEL)
    check("completion" in shown.capabilities and shown.modelinfo and shown.details.family, shown)
    check(client.ps().models[0].context_length, "no context")
    try:
        client.embed(model=MODEL, input="a")
    except ollama.ResponseError as e:
        check(e.status_code == 404 and e.error, e)
    else:
        raise AssertionError("a language model embedded a text")


def streamed():
    parts = list(client.chat(model=MODEL, messages=messages, options=options, stream=True))
    text = "".join(part.message.content for part in parts)
    check(text and parts[-1].done and not parts[0].done and parts[-1].eval_count, parts)
    parts = list(client.generate(model=MODEL, prompt=QUESTION, options=options, stream=True))
    check("".join(part.response for part in parts) and parts[-1].done_reason, parts)


def tools():
    # The client makes a tool of a function. The grammar requires a call.
    call = '{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1, \\"b\\": 2}}'
    grammar = f'start: "<tool_call>\\n{call}\\n</tool_call>"'
    answer = client.chat(model=MODEL, messages=messages, tools=[add], options={**options, "grammar": grammar})
    function = answer.message.tool_calls[0].function
    check(add(**function.arguments) == 3, answer)
    # The answer goes back as the client has it.
    result = {"role": "tool", "tool_name": function.name, "content": "3"}
    again = [*messages, answer.message, result]
    answer = client.chat(model=MODEL, messages=again, tools=[add], options={"num_predict": 10})
    check(answer.done, answer)


def structured():
    schema = Answer.model_json_schema()
    answer = client.chat(model=MODEL, messages=messages, format=schema, options=options)
    check(Answer.model_validate_json(answer.message.content), answer)


report("ollama", plain=plain, streamed=streamed, tools=tools, structured=structured)
