// A trace that `pdm run trace` wrote, as a schedule to draw; an Error whose message is a sentence for what is no trace.
// Pure functions; tests/book/test_trace_page.py proves the times equal to the Python.
var TinyRunReader = (function () {
  "use strict";

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const isCount = (value) => Number.isInteger(value) && value >= 0;

  const isListOf = (list, test) => Array.isArray(list) && list.every(test);
  const isPoolEvent = (event, run) => event && ["hit", "preemption"].includes(event.kind) && isCount(event.step)
    && isNumber(event.time_s) && event.request in run.requests && isCount(event.tokens);

  function parse(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error("This is no JSON. Give the file that pdm run trace wrote.");
    }
  }

  // {calls, arrivals, felt, end, numSteps, poolEvents, blocks} in milliseconds; the calls as in TinyTwins.timeline.play,
  // their rows with the number of the first token; a chunk goes beyond the prompt after a preemption.
  function schedule(run) {
    check(run);
    const requests = run.requests;
    const calls = run.events.map((event) => ({
      step: event.step, phase: event.phase, start: 1000 * event.start_s, end: 1000 * event.end_s,
      rows: Object.entries(event.tokens).map(([id, tokens]) => ({
        id: Number(id), tokens, first: event.first[id], sampled: event.sampled.includes(Number(id)) ? 1 : 0,
        isBeyondPrompt: event.first[id] + tokens > requests[id].prompt_tokens,
      })),
    }));
    const felt = TinyTwins.timeline.measure(calls, requests.map(() => 0), (call) => call.end);
    const arrivals = requests.map((request, id) => (felt[id].ttft === null ? 0 : Math.max(0, felt[id].ttft - 1000 * request.ttft_s)));
    felt.forEach((one, id) => { if (one.ttft !== null) one.ttft -= arrivals[id]; });
    const end = calls.length > 0 ? calls[calls.length - 1].end : 0;
    const poolEvents = (run.pool_events || []).map((event) => ({
      kind: event.kind, step: event.step, time: 1000 * event.time_s, id: event.request, tokens: event.tokens,
    }));
    return { calls, arrivals, felt, end, numSteps: calls.length > 0 ? calls[calls.length - 1].step + 1 : 0, poolEvents, blocks: run.blocks || [] };
  }

  function check(run) {
    const fail = (what) => { throw new Error(`This is no trace: ${what}. Give the file that pdm run trace wrote.`); };
    if (run === null || typeof run !== "object") fail("it is no JSON object");
    for (const name of ["requests", "events"]) if (!Array.isArray(run[name])) fail(`it has no list of ${name}`);
    if (run.requests.length === 0) fail("it has no request");
    run.requests.forEach((request, i) => {
      for (const name of ["prompt_tokens", "output_tokens"]) {
        if (!request || !isCount(request[name])) fail(`request ${i} has no ${name}`);
      }
      if (request.output_tokens > 0 && !isNumber(request.ttft_s)) fail(`request ${i} has no ttft_s`);
    });
    run.events.forEach((event, i) => {
      if (!event || !isCount(event.step)) fail(`event ${i} has no step`);
      if (!["prefill", "decode"].includes(event.phase)) fail(`event ${i} is neither prefill nor decode`);
      if (!isNumber(event.start_s) || !isNumber(event.end_s) || event.end_s < event.start_s) fail(`event ${i} has no start_s and end_s`);
      const rows = Object.entries(event.tokens || {});
      if (rows.length === 0 || rows.some(([id, tokens]) => !(id in run.requests) || !isCount(tokens))) fail(`event ${i} has no tokens of its requests`);
      if (rows.some(([id]) => !isCount((event.first || {})[id]))) fail(`event ${i} does not say which tokens`);
      if (!isListOf(event.sampled, (id) => id in event.tokens)) fail(`event ${i} does not say who got a token`);
    });
    if (!isListOf(run.pool_events || [], (event) => isPoolEvent(event, run))) fail("its pool_events are no hits and preemptions");
    const areBlocks = (counts) => counts && ["used", "cached", "free"].every((name) => isCount(counts[name]));
    if (!isListOf(run.blocks || [], areBlocks)) fail("its blocks are not used, cached and free");
  }

  return { parse, schedule };
})();
