import asyncio
import os

from mcp import Client, StdioServerParameters

from common import QUESTION, URL, check, report

HTTP = URL.removesuffix("/v1") + "/mcp"
STDIO = StdioServerParameters(
    command=os.environ["TERCET_BINARY"], args=["mcp", "-m", os.environ["TERCET_MODEL"], "--device", "cpu", "-c", "128"]
)
ARGUMENTS = {"prompt": QUESTION, "max_tokens": 8, "temperature": 0}


async def plain():
    # The default mode asks for a newer version of the protocol first; `legacy` begins with `initialize`.
    for mode in ["auto", "legacy"]:
        async with Client(HTTP, mode=mode) as client:
            tools = (await client.list_tools()).tools
            check([tool.name for tool in tools] == ["generate"], tools)
            check(client.server_info.name == "tercet", client.server_info)


async def tools():
    async with Client(HTTP) as client:
        results = [client.call_tool("generate", ARGUMENTS) for _ in range(4)]
        texts = {result.content[0].text for result in await asyncio.gather(*results)}
        check(len(texts) == 1 and all(texts), texts)
        wrong = await client.call_tool("generate", {"prompt": 1})
        check(wrong.is_error, wrong)
    async with Client(STDIO) as client:
        result = await client.call_tool("generate", ARGUMENTS)
        check(not result.is_error and result.content[0].text, result)


async def structured():
    async with Client(HTTP) as client:
        result = await client.call_tool("generate", ARGUMENTS)
        answer = result.structured_content
        check(answer["text"] == result.content[0].text and answer["finish_reason"], answer)


report("mcp", plain=plain, tools=tools, structured=structured)
