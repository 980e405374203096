// Schedules of batch.BatchGenerator, of chunked_prefill and of serving.Scheduler, step by step, and what users feel of them.
// Pure functions; tests/book/test_twins.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.timeline = (function () {
  "use strict";

  const LAST_STEP = 1000;

  // What BatchGenerator.step does, again and again: {prompts, outputs, arrivals, chunk, batch, callCost} ->
  // {calls, promotions, arrivals, numSteps}. A call of the model takes callCost and a token of time each.
  function play(settings) {
    const requests = settings.prompts.map((prompt, id) => ({
      id, prompt, output: settings.outputs[id], arrival: settings.arrivals[id], offset: 0, numTokens: 0,
    }));
    const state = {
      requests, waiting: [], prefilling: null, slots: Array(settings.batch).fill(null),
      calls: [], promotions: [], arrivals: [], now: 0, step: 0, callCost: settings.callCost,
    };
    let submitted = 0;
    while (submitted < requests.length || hasWork(state)) {
      const arriving = requests.filter((request) => request.arrival === state.step);
      for (const request of arriving) state.arrivals[request.id] = { step: state.step, time: state.now };
      state.waiting.push(...arriving);
      submitted += arriving.length;
      prefillPhase(state, settings.chunk);
      decodePhase(state);
      promotePhase(state);
      state.step += 1;
    }
    return { calls: state.calls, promotions: state.promotions, arrivals: state.arrivals, numSteps: state.step };
  }

  const hasWork = (state) => state.waiting.length > 0 || state.prefilling !== null || active(state).length > 0;

  const active = (state) => state.slots.filter((request) => request !== null);

  function prefillPhase(state, chunk) {
    if (state.prefilling === null && state.waiting.length > 0) state.prefilling = state.waiting.shift();
    const request = state.prefilling;
    if (request === null || request.offset >= request.prompt) return;
    const tokens = Math.min(chunk, request.prompt - request.offset);
    request.offset += tokens;
    const isLast = request.offset === request.prompt;
    call(state, "prefill", [{ id: request.id, tokens, sampled: isLast ? 1 : 0 }]);
    if (!isLast) return;
    request.numTokens = 1;
    if (request.output === 1) state.prefilling = null;
  }

  function decodePhase(state) {
    const requests = active(state);
    if (requests.length === 0) return;
    call(state, "decode", requests.map((request) => ({ id: request.id, tokens: 1, sampled: 1 })));
    for (const request of requests) {
      request.numTokens += 1;
      if (request.numTokens === request.output) state.slots[state.slots.indexOf(request)] = null;
    }
  }

  function promotePhase(state) {
    const request = state.prefilling;
    const slot = state.slots.indexOf(null);
    if (request === null || request.offset < request.prompt || slot < 0) return;
    state.slots[slot] = request;
    state.prefilling = null;
    state.promotions.push({ step: state.step, id: request.id, slot });
  }

  function call(state, phase, rows) {
    const start = state.now;
    state.now += state.callCost + rows.reduce((sum, row) => sum + row.tokens, 0);
    state.calls.push({ step: state.step, phase, start, end: state.now, rows });
  }

  // What serving.Simulator does with one budget: {prompts, outputs, arrivals, budget, batch, threshold, partial, callCost},
  // where 0 is no threshold and no limit on partial prefills -> as play. A step takes callCost and a token of time each.
  function playBudget(settings) {
    const pending = settings.prompts.map((prompt, id) => ({
      id, prompt, output: settings.outputs[id], arrival: settings.arrivals[id], present: prompt, computed: 0,
    }));
    const state = { running: [], waiting: [], calls: [], promotions: [], arrivals: [], now: 0, step: 0 };
    let submitted = 0;
    while (submitted < pending.length || state.waiting.length + state.running.length > 0) {
      const arriving = pending.filter((sequence) => sequence.arrival === state.step);
      for (const sequence of arriving) state.arrivals[sequence.id] = { step: state.step, time: state.now };
      state.waiting.push(...arriving);
      submitted += arriving.length;
      compute(state, scheduleStep(state, settings), settings.callCost);
      state.step += 1;
    }
    return { calls: state.calls, promotions: [], arrivals: state.arrivals, numSteps: state.step };
  }

  // Scheduler.schedule: [{sequence, tokens, isFinal}], those that run first.
  function scheduleStep(state, { budget, batch, threshold, partial }) {
    const entries = [];
    const longest = threshold > 0 ? threshold : budget;
    let spare = budget - state.running.length; // beyond one token for each that runs
    for (const sequence of state.running) {
      const entry = nextTokens(sequence, Math.min(longest, 1 + spare));
      spare -= entry.tokens - 1;
      entries.push(entry);
    }
    while (spare > 0 && state.waiting.length > 0 && state.running.length < batch) {
      const entry = nextTokens(state.waiting[0], Math.min(longest, spare));
      const numPartial = entries.filter(({ isFinal }) => !isFinal).length;
      if (partial > 0 && !entry.isFinal && numPartial >= partial) break;
      spare -= entry.tokens;
      entries.push(entry);
      state.running.push(state.waiting.shift());
    }
    return entries;
  }

  function nextTokens(sequence, limit) {
    const tokens = Math.min(sequence.present - sequence.computed, limit);
    return { sequence, tokens, isFinal: sequence.computed + tokens === sequence.present };
  }

  function compute(state, entries, callCost) {
    if (entries.length === 0) return;
    const start = state.now;
    const end = start + callCost + entries.reduce((sum, { tokens }) => sum + tokens, 0);
    const rowOf = ({ sequence, tokens, isFinal }) => ({ id: sequence.id, tokens, sampled: isFinal ? 1 : 0 });
    const isChunk = ({ sequence }) => sequence.computed < sequence.prompt;
    const add = (phase, rows) => state.calls.push({ step: state.step, phase, start, end, rows });
    for (const entry of entries.filter(isChunk)) add("prefill", [rowOf(entry)]);
    const decodes = entries.filter((entry) => !isChunk(entry)).map(rowOf);
    if (decodes.length > 0) add("decode", decodes);
    for (const { sequence, tokens, isFinal } of entries) {
      sequence.computed += tokens;
      if (isFinal) sequence.present += 1;
    }
    state.running = state.running.filter((sequence) => sequence.present - sequence.prompt < sequence.output);
    state.now = end;
  }

  // Of each request, TTFT and the longest gap between two of its tokens, where `end(call)` is when its tokens
  // are there and `arrivals` when it was submitted, in the same unit: [{ttft, gap, from, to}], null where none.
  function measure(calls, arrivals, end) {
    const tokens = arrivals.map(() => []);
    for (const one of calls) {
      for (const row of one.rows) for (let i = 0; i < row.sampled; i += 1) tokens[row.id].push(end(one));
    }
    return tokens.map((times, id) => {
      const longest = longestGap(times);
      return { ttft: times.length > 0 ? times[0] - arrivals[id] : null, ...longest };
    });
  }

  function longestGap(times) {
    let found = { gap: null, from: null, to: null };
    for (let i = 1; i < times.length; i += 1) {
      const gap = times[i] - times[i - 1];
      if (found.gap === null || gap > found.gap) found = { gap, from: times[i - 1], to: times[i] };
    }
    return found;
  }

  // chunked_prefill.num_prefill_steps
  function numPrefillSteps(promptLength, threshold, budget) {
    return Math.ceil(promptLength / (threshold > 0 ? Math.min(threshold, budget) : budget));
  }

  // chunked_prefill.chunked_prefill_schedule: [{chunks: [{id, tokens}], decodes}] of steps 0 to 1000.
  function budgetSchedule(prompts, numDecodes, budget, chunk) {
    const remaining = prompts.slice();
    const steps = [];
    let decoding = numDecodes;
    while ((remaining.some((tokens) => tokens > 0) || decoding > 0) && steps.length <= LAST_STEP) {
      const decodes = Math.min(decoding, budget);
      const chunks = giveChunks(remaining, budget - decodes, (left) => (left < chunk ? 0 : chunk));
      decoding += chunks.filter(({ id }) => remaining[id] === 0).length;
      steps.push({ chunks, decodes });
    }
    return steps;
  }

  // chunked_prefill.repaired_prefill_schedule
  function repairedSchedule(prompts, activeOutputs, budget, chunk, outputLength) {
    const remaining = prompts.slice();
    const steps = [];
    let decoding = activeOutputs.slice();
    while (remaining.some((tokens) => tokens > 0) || decoding.length > 0) {
      const served = decoding.slice(0, budget);
      decoding = decoding.slice(served.length).concat(served.map((left) => left - 1).filter((left) => left > 0));
      const chunks = giveChunks(remaining, budget - served.length, (left) => Math.min(chunk, left));
      for (const { id } of chunks) if (remaining[id] === 0) decoding.push(outputLength);
      steps.push({ chunks, decodes: served.length });
    }
    return steps;
  }

  // One pass over the prompts that are left; `allowed(budget)` says how many tokens the next one may have.
  function giveChunks(remaining, budget, allowed) {
    const chunks = [];
    for (let id = 0; id < remaining.length; id += 1) {
      if (remaining[id] === 0) continue;
      const limit = allowed(budget);
      if (limit === 0) break;
      const tokens = Math.min(limit, remaining[id]);
      remaining[id] -= tokens;
      budget -= tokens;
      chunks.push({ id, tokens });
    }
    return chunks;
  }

  return { play, playBudget, measure, numPrefillSteps, budgetSchedule, repairedSchedule };
})();
