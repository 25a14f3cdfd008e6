import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { check, key, model, question, report, url } from "./common.mjs";

const client = new OpenAI({ baseURL: url, apiKey: key });
const messages = [{ role: "user", content: question }];
const numbers = z.object({ a: z.number().int(), b: z.number().int() });

await report("openai", {
  async plain() {
    const answer = await client.chat.completions.create({ model, messages });
    check(answer.choices[0].message.content && answer.usage.total_tokens, answer);
  },
  async streamed() {
    const stream = client.chat.completions.stream({ model, messages });
    let parts = 0;
    for await (const part of stream) parts += part.choices.length;
    const answer = await stream.finalChatCompletion();
    check(parts > 1 && answer.choices[0].message.content, answer);
  },
  async tools() {
    const tools = [zodFunction({ name: "add", parameters: numbers })];
    // `parse` throws at the length limit, `create` does not.
    const auto = await client.chat.completions.create({ model, messages, tools, max_tokens: 20 });
    check(auto.choices[0].message, auto);
    const options = { model, messages, tools, tool_choice: "required" };
    const answer = await client.chat.completions.parse(options);
    const call = answer.choices[0].message.tool_calls[0];
    check(Number.isInteger(call.function.parsed_arguments.a), call);
  },
  async structured() {
    const format = zodResponseFormat(z.object({ is_true: z.boolean() }), "answer");
    const options = { model, messages, response_format: format };
    const answer = await client.chat.completions.parse(options);
    check(typeof answer.choices[0].message.parsed.is_true === "boolean", answer);
  },
});
