// Recorded runs of an engine's thread, and what they come to. Pure functions; tests/book/test_twins_of_threads.py tests them.
var TinyTwins = TinyTwins || {};

TinyTwins.engineThread = (function () {
  "use strict";

  // The recorded steps of a case: fault is "none", "step-3" or "request-1"; gone is the number of reports after which
  // the client hangs up, 0 for never.
  const stepsOf = (data, fault, gone) => data.runs[data.cases[`${fault}/${gone}`]];

  // The steps with what each row is: {id, first, tokens, isFinal, numAgain}, where numAgain counts the
  // tokens that an earlier step had computed.
  function rowsOf(data, steps) {
    const computed = data.requests.map(() => 0);
    return steps.map((step) => step.rows.map(([id, first, tokens, isFinal]) => {
      const numAgain = Math.max(0, Math.min(tokens, computed[id] - first));
      computed[id] = Math.max(computed[id], first + tokens);
      return { id, first, tokens, isFinal: isFinal === 1, numAgain };
    }));
  }

  // {numSteps, numFailed, numAgain, requests: [{text, numTokens, end}]}, where end is "length", "stop", "error" or "hung up".
  function summary(data, steps) {
    const requests = data.requests.map(() => ({ text: "", numTokens: 0, end: null }));
    steps.forEach((step) => {
      for (const command of step.down) if (command[0] === "-") requests[Number(command.slice(1))].end = "hung up";
      for (const [id, text, reason] of step.up) {
        requests[id].text += text;
        requests[id].numTokens += 1;
        requests[id].end = reason;
      }
      for (const id of step.failed) requests[id].end = "error";
    });
    const rows = rowsOf(data, steps).flat();
    return {
      numSteps: steps.length, numFailed: steps.filter(({ ok }) => ok === 0).length,
      numAgain: rows.reduce((sum, row) => sum + row.numAgain, 0), requests,
    };
  }

  return { stepsOf, rowsOf, summary };
})();
