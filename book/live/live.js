// The page of a server: a chat, and what the engine does meanwhile.
(function () {
  "use strict";

  const { html, number, table } = TinyViz;
  const at = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isStill = matchMedia("(prefers-reduced-motion: reduce)");
  const KEY = "tiny-llm-api-key";
  const sleep = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

  function chooseTheme() { document.documentElement.className = dark.matches ? "navy" : "light"; }
  dark.addEventListener("change", chooseTheme);
  chooseTheme();

  // ---- requests to the server

  let keyGiven = null; // resolves when the reader has given a key

  async function ask(path, options = {}) {
    const key = sessionStorage.getItem(KEY);
    const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401) {
      askForKey();
      throw new Error("The API key is missing or wrong.");
    }
    if (!response.ok) throw new Error((await response.json()).error.message);
    return response;
  }

  function askForKey() {
    if (keyGiven) return;
    at("access").hidden = false;
    at("key").focus();
    keyGiven = new Promise((resolve) => {
      at("access").onsubmit = (event) => {
        event.preventDefault();
        sessionStorage.setItem(KEY, at("key").value);
        at("access").hidden = true;
        keyGiven = null;
        at("prompt").focus();
        resolve();
      };
    });
  }

  async function* eventsOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
      }
    }
  }

  // ---- the chat

  let messages = [];
  let running = null;

  const say = (kind, text) => at("log").appendChild(html("p", { class: kind }, text));

  const modelName = async (signal) => (await (await ask("/v1/models", { signal })).json()).data[0].id;

  // The models that ship have read one book. They continue it, and a chat with them is gibberish.
  async function introduce() {
    const model = await modelName();
    if (!model.startsWith("qwen3-kjv-")) return;
    at("about").textContent = `${model} is tiny and has read nothing but the King James Bible: it continues a text. To chat, restart with pdm run serve --model smollm2, which fetches a larger model (93 MB).`;
    at("about").hidden = false;
    at("kind").value = "text";
    at("prompt").value ||= "And God said";
  }

  async function answer(text, signal) {
    const model = await modelName(signal);
    const isChat = at("kind").value === "chat";
    if (isChat) messages.push({ role: "user", content: text });
    const numbers = { max_tokens: Number(at("most").value), temperature: Number(at("temperature").value) };
    const shared = { model, stream: true, ...numbers };
    const body = JSON.stringify(isChat ? { ...shared, messages } : { ...shared, prompt: text });
    const item = say("assistant", "");
    let thought = null;
    at("log").ariaBusy = "true"; // an answer is read aloud when it is complete
    try {
      const response = await ask(isChat ? "/v1/chat/completions" : "/v1/completions", { method: "POST", body, signal });
      for await (const event of eventsOf(response)) {
        if (event.error) throw new Error(event.error.message);
        const log = at("log");
        const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
        for (const choice of event.choices) {
          if (choice.delta?.reasoning) {
            thought ??= at("log").insertBefore(html("p", { class: "thought" }, ""), item);
            thought.append(choice.delta.reasoning);
          }
          item.append((isChat ? choice.delta.content : choice.text) ?? "");
        }
        if (isAtEnd) log.scrollTop = log.scrollHeight;
      }
    } finally {
      if (isChat) messages.push({ role: "assistant", content: item.textContent });
      if (item.textContent === "") item.remove();
      at("log").ariaBusy = "false";
    }
  }

  function showRunning(isRunning) {
    at("send").textContent = isRunning ? "Stop" : "Send";
    at("send").classList.toggle("stops", isRunning);
    at("prompt").required = !isRunning;
  }

  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) {
      running.abort();
      return;
    }
    const text = at("prompt").value;
    running = new AbortController();
    showRunning(true);
    say("user", text);
    at("prompt").value = "";
    try {
      await answer(text, running.signal);
    } catch (error) {
      if (error.name === "AbortError") say("note", "Stopped.");
      else say("wrong", error.message);
    }
    running = null;
    showRunning(false);
  });
  at("ask").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) running.abort();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== at("prompt")) return;
    event.preventDefault();
    if (!running) at("ask").requestSubmit();
  });
  at("clear").addEventListener("click", () => {
    if (running) running.abort();
    messages = [];
    at("log").replaceChildren();
  });

  // ---- the engine

  const run = TinyLive.create();
  let latest = null;
  let isPaused = false;
  let drawnAt = -Infinity;

  const share = (part, whole) => (whole > 0 ? part / whole : 0);
  const percent = (part, whole) => `${Math.round(100 * share(part, whole))} %`;

  function numbersOf({ stats, totals, limits, num_blocks: numBlocks }) {
    const step = run.steps[run.steps.length - 1] ?? { rows: [] };
    const tokens = step.rows.reduce((sum, [, , count]) => sum + count, 0);
    const isPrefillOnly = step.rows.every(([, , , isPrefill]) => isPrefill);
    const budget = (isPrefillOnly && limits.max_num_prefill_only_tokens) || limits.max_num_batched_tokens;
    const of = (part, whole) => [number(part), `of ${number(whole)}`, share(part, whole)];
    return [
      ["running", ...of(stats.num_running, limits.max_num_seqs)],
      ["in the queue", ...of(stats.num_waiting, limits.max_num_queued_reqs)],
      ["blocks in use", ...of(stats.num_used_blocks, numBlocks)],
      ["budget, last step", ...of(tokens, budget)],
      ["found in the cache", percent(totals.num_hit_tokens, totals.num_admitted_tokens), `of ${number(totals.num_admitted_tokens)}`],
      ["drafts accepted", totals.num_draft_tokens ? percent(totals.num_accepted_tokens, totals.num_draft_tokens) : "–", totals.num_draft_tokens ? `of ${number(totals.num_draft_tokens)}` : "no drafts"],
      ["generated", number(Math.round(TinyLive.tokensPerSecond(run, 2))), "tokens/s"],
      ["preemptions", number(totals.num_preemptions), `${number(totals.num_failed_steps)} failed steps`],
    ];
  }

  function showNumbers() {
    at("numbers").replaceChildren(...numbersOf(latest).map(([name, value, rest, part]) => {
      const bar = part === undefined ? null : html("div", { class: "bar" });
      bar?.style.setProperty("--share", Math.min(1, part));
      return html("div", {}, html("dt", {}, name), html("dd", {}, html("b", {}, value), ` ${rest}`, bar ?? []));
    }));
  }

  function draw() {
    drawnAt = performance.now();
    showNumbers();
    const window = Number(at("window").value);
    const width = Math.max(280, at("timeline").clientWidth);
    const schedule = TinyLive.schedule(run, window, width);
    const format = (time) => number(Number((window - time).toFixed(3)));
    const label = `The last ${window} seconds of the engine, a row per request`;
    at("timeline").replaceChildren(TinyTimeline.draw(width, [schedule], { unit: "seconds ago", format, label }).node);
    const rows = schedule.requests.map((request) => [
      `#${request.ticket}`, TinyLive.stateOf(request), number(request.num_prompt_tokens), number(request.num_cached_tokens), number(request.num_tokens)]);
    const caption = rows.length === 0 ? "No requests" : schedule.numHidden > 0 ? `The newest requests; ${number(schedule.numHidden)} older ones are not shown` : "Requests";
    at("requests").replaceChildren(table(caption, ["no.", "state", "prompt", "cached", "answer"], rows));
  }

  let timer = null;
  function drawSoon() {
    if (isPaused || timer !== null) return;
    const interval = isStill.matches ? 2000 : 200;
    timer = setTimeout(() => { timer = null; draw(); }, Math.max(0, drawnAt + interval - performance.now()));
  }

  const STATES = { loading: "Loading the model…", ready: "Ready.", draining: "The server is shutting down.", stopped: "The engine has stopped." };

  function showStatus(text) {
    if (at("status").textContent !== text) at("status").textContent = text;
  }

  async function watch() {
    for (let isNew = true; ;) {
      try {
        for await (const event of eventsOf(await ask("/events"))) {
          latest = event;
          TinyLive.add(run, event);
          showStatus(STATES[event.state]);
          drawSoon();
          if (isNew && event.state === "ready") {
            isNew = false;
            await introduce();
          }
        }
        await sleep(1000);
      } catch (error) {
        showStatus(keyGiven ? "Waiting for the API key." : "The server does not answer; trying again.");
        await (keyGiven ?? sleep(2000));
      }
    }
  }

  at("pause").addEventListener("click", () => {
    isPaused = !isPaused;
    at("pause").ariaPressed = String(isPaused);
    drawSoon();
  });
  at("window").addEventListener("change", () => { if (latest) draw(); });
  new ResizeObserver(() => { if (latest) drawSoon(); }).observe(document.body);
  at("legend").append(TinyTimeline.legend());
  watch();
})();
