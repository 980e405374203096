// What Vercel's AI SDK gets from a server: prints one JSON object.
// Arguments: base URL and model of a server that answers, then of one that calls the tool first.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , url, name, toolsUrl, toolsName] = process.argv;
const modelAt = (baseURL, model) =>
  createOpenAICompatible({ name: "tiny", baseURL, apiKey: "any", supportsStructuredOutputs: true }).chatModel(model);
const limits = { temperature: 0, maxRetries: 0 };
const question = { ...limits, model: modelAt(url, name), prompt: "Who made the world?" };

async function whole() {
  const { text, usage, finishReason } = await generateText(question);
  return { text, usage, finishReason };
}

async function streamed() {
  const stream = streamText(question);
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  return { text, usage: await stream.usage };
}

async function structured() {
  const schema = z.object({ land: z.enum(["Judah", "Israel"]) });
  const { output } = await generateText({ ...question, output: Output.object({ schema }) });
  return output;
}

async function tools(generate) {
  const asked = [];
  const execute = async ({ city }) => {
    asked.push(city);
    return "rain";
  };
  const weather = tool({ description: "How it is", inputSchema: z.object({ city: z.string() }), execute });
  const asks = { ...limits, model: modelAt(toolsUrl, toolsName), prompt: "How is it?", tools: { weather } };
  const result = await generate({ ...asks, maxOutputTokens: 64, stopWhen: stepCountIs(2) });
  return { text: await result.text, asked };
}

async function unknownModel() {
  try {
    await generateText({ ...question, model: modelAt(url, "gpt-5") });
  } catch (error) {
    return { name: error.name, status: error.statusCode, message: error.message };
  }
}

async function drained(request) {
  const stream = streamText(request);
  await stream.consumeStream();
  return stream;
}

console.log(
  JSON.stringify({
    whole: await whole(),
    streamed: await streamed(),
    structured: await structured(),
    tools: await tools(generateText),
    streamedTools: await tools(drained),
    unknownModel: await unknownModel(),
  }),
);
