// What OpenAI's client for JavaScript gets from a server: prints one JSON object. Arguments: base URL, model.
import OpenAI from "openai";

const [, , baseURL, model] = process.argv;
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const prompt = "In the beginning";
const messages = [{ role: "user", content: "Who made the world?" }];
const limits = { model, temperature: 0 };

async function whole() {
  const answer = await client.completions.create({ ...limits, prompt, max_tokens: 24 });
  return { text: answer.choices[0].text, usage: answer.usage };
}

async function streamed() {
  const stream = await client.completions.create({ ...limits, prompt, max_tokens: 24, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0].text;
  return { text };
}

async function chat() {
  const fields = { ...limits, messages, max_completion_tokens: 12, logprobs: true, top_logprobs: 3 };
  const answer = await client.chat.completions.create(fields);
  const choice = answer.choices[0];
  return { text: choice.message.content, role: choice.message.role, logprobs: choice.logprobs.content.length, usage: answer.usage };
}

async function streamedChat() {
  const fields = { ...limits, messages, max_completion_tokens: 12, stream_options: { include_usage: true } };
  const runner = client.chat.completions.stream(fields);
  const pieces = [];
  runner.on("content", (piece) => pieces.push(piece));
  const usage = await runner.totalUsage();
  return { text: pieces.join(""), final: await runner.finalContent(), usage };
}

async function responses() {
  const fields = { ...limits, input: "Who made the world?", max_output_tokens: 12 };
  const answer = await client.responses.create(fields);
  const pieces = [];
  let last;
  for await (const event of await client.responses.create({ ...fields, stream: true })) {
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
    last = event.type;
  }
  return { text: answer.output_text, pieces: pieces.join(""), last };
}

async function structured() {
  const land = { enum: ["Judah", "Israel"] };
  const schema = { type: "object", properties: { land }, required: ["land"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "king", strict: true, schema } };
  const fields = { ...limits, messages, max_completion_tokens: 300, response_format };
  const answer = await client.chat.completions.parse(fields);
  return JSON.parse(answer.choices[0].message.content);
}

async function aborted() {
  const stream = await client.completions.create({ ...limits, prompt, max_tokens: 1500, stream: true, ignore_eos: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
  return { chunks };
}

async function failed(request) {
  try {
    await request();
  } catch (error) {
    return { name: error.constructor.name, status: error.status, param: error.param, code: error.code };
  }
}

console.log(
  JSON.stringify({
    models: (await client.models.list()).data.map((each) => each.id),
    whole: await whole(),
    streamed: await streamed(),
    chat: await chat(),
    streamedChat: await streamedChat(),
    responses: await responses(),
    structured: await structured(),
    aborted: await aborted(),
    unknownModel: await failed(() => client.chat.completions.create({ model: "gpt-5", messages })),
    wrongField: await failed(() => client.completions.create({ model, prompt, temperature: 5 })),
    wrongStream: await failed(() => client.chat.completions.create({ model, messages, n: 0, stream: true })),
  }),
);
