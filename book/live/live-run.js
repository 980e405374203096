// The server's feed as a schedule for TinyTimeline: what the engine computed in the last seconds, a row per request.
// Pure functions; tests/book/test_live_page.py tests them.
var TinyLive = (function () {
  "use strict";

  const KEPT_SECONDS = 30;
  const MOST_STEPS = 20000;
  const MOST_ROWS = 12;
  const CLOSEST = 4; // pixels between two dots of a row

  const create = () => ({ steps: [], requests: new Map(), now: 0 });

  // Note an event of the feed, and forget what has become too old to be shown.
  function add(run, event) {
    run.now = event.now;
    run.steps.push(...event.steps);
    const oldest = event.now - KEPT_SECONDS;
    const first = run.steps.findIndex((step) => step.end >= oldest);
    run.steps.splice(0, Math.max(first < 0 ? run.steps.length : first, run.steps.length - MOST_STEPS));
    const inFlight = new Set(event.requests.map(({ ticket }) => ticket));
    for (const [ticket, request] of run.requests) {
      const isGone = request.outcome === null && !inFlight.has(ticket); // ended while this page was not connected
      if (isGone || request.seen < oldest) run.requests.delete(ticket);
    }
    for (const request of event.requests) run.requests.set(request.ticket, { ...request, seen: event.now });
  }

  // The schedule of the last `window` seconds for a drawing of `width` pixels; times are seconds since its start.
  function schedule(run, window, width) {
    const isBusy = [...run.requests.values()].some(({ outcome }) => outcome === null);
    const last = run.steps.length > 0 ? run.steps[run.steps.length - 1].end : run.now;
    const start = (isBusy ? run.now : last) - window;
    const steps = run.steps.filter((step) => step.end > start);
    const worked = new Set(steps.flatMap((step) => step.rows.map(([ticket]) => ticket)));
    const requests = [...run.requests.values()]
      .filter(({ ticket, outcome }) => outcome === null || worked.has(ticket))
      .sort((a, b) => a.ticket - b.ticket);
    const shown = requests.slice(-MOST_ROWS);
    const rowOf = new Map(shown.map(({ ticket }, row) => [ticket, row]));
    const calls = steps.flatMap((step, number) => callsOf(step, number, start, rowOf, shown));
    const arrivals = shown.map(({ arrival }) => Math.max(0, arrival - start));
    const felt = TinyTwins.timeline.measure(calls, arrivals, (call) => call.end);
    const names = shown.map(({ ticket }) => `#${ticket}`);
    const drawn = thinned(calls, (CLOSEST * window) / width);
    return { title: "", calls: drawn, arrivals, felt, end: window, names, requests: shown, numHidden: requests.length - shown.length };
  }

  function callsOf(step, number, start, rowOf, shown) {
    const known = step.rows.filter(([ticket]) => rowOf.has(ticket));
    return ["prefill", "decode"].map((phase) => ({
      step: number, phase, start: Math.max(0, step.start - start), end: step.end - start,
      rows: known.filter(([, , , isPrefill]) => isPrefill === (phase === "prefill")).map(([ticket, first, tokens, , isFinal]) => ({
        id: rowOf.get(ticket), tokens, first, sampled: isFinal ? 1 : 0,
        isBeyondPrompt: first + tokens > shown[rowOf.get(ticket)].num_prompt_tokens,
      })),
    })).filter(({ rows }) => rows.length > 0);
  }

  // The calls without decodes that would be drawn on top of the ones before them.
  function thinned(calls, closest) {
    const lastDot = new Map();
    return calls.map((call) => (call.phase === "prefill" ? call : {
      ...call, rows: call.rows.filter(({ id }) => {
        const isFar = !lastDot.has(id) || call.end - lastDot.get(id) >= closest;
        if (isFar) lastDot.set(id, call.end);
        return isFar;
      }),
    })).filter(({ rows }) => rows.length > 0);
  }

  // Tokens that were sampled per second, over the last `seconds`.
  function tokensPerSecond(run, seconds) {
    const isSampled = ([, , , , isFinal]) => isFinal;
    const steps = run.steps.filter((step) => step.end > run.now - seconds);
    return steps.reduce((sum, step) => sum + step.rows.filter(isSampled).length, 0) / seconds;
  }

  // What a request does, in a word.
  function stateOf({ outcome, is_started: isStarted, num_tokens: numTokens }) {
    if (outcome !== null) return { stop: "ended", length: "ended by length", abort: "aborted", error: "failed" }[outcome];
    return !isStarted ? "waits" : numTokens === 0 ? "prefill" : "decodes";
  }

  return { create, add, schedule, tokensPerSecond, stateOf };
})();
