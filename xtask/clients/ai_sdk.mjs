import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { check, key, model as name, question, report, url } from "./common.mjs";

const provider = createOpenAICompatible({
  name: "tercet",
  baseURL: url,
  apiKey: key,
  supportsStructuredOutputs: true,
});
const model = provider(name);
const add = tool({
  description: "Adds two numbers.",
  inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  execute: async ({ a, b }) => a + b,
});

await report("ai", {
  async plain() {
    const answer = await generateText({ model, prompt: question });
    check(answer.text && answer.usage.outputTokens, answer);
  },
  async streamed() {
    let parts = 0;
    const result = streamText({ model, prompt: question, onError: ({ error }) => { throw error; } });
    for await (const part of result.textStream) parts += part.length > 0;
    check(parts > 1 && (await result.finishReason), parts);
  },
  async tools() {
    await generateText({ model, prompt: question, tools: { add }, maxOutputTokens: 20 });
    const options = { model, prompt: question, tools: { add }, stopWhen: stepCountIs(1) };
    const answer = await generateText({ ...options, toolChoice: "required" });
    check(Number.isInteger(answer.toolResults[0].output), answer.toolResults);
  },
  async structured() {
    const schema = z.object({ is_true: z.boolean() });
    const answer = await generateObject({ model, prompt: question, schema });
    check(typeof answer.object.is_true === "boolean", answer.object);
  },
});
