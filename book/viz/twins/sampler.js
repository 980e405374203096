// What sampler.make_sampler leaves of a distribution.
// Pure functions; tests/book/test_twins.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.sampler = (function () {
  "use strict";

  // Token ids, the likeliest first.
  const order = (logprobs) => logprobs.map((_, id) => id).sort((a, b) => logprobs[b] - logprobs[a] || a - b);

  // Of each token the names of the cuts that drop it: "top-k", "top-p", "min-p". 0 is no cut.
  function cuts(logprobs, topP, topK, minP) {
    const dropped = logprobs.map(() => []);
    const likeliest = order(logprobs);
    let reached = 0;
    likeliest.forEach((id, rank) => {
      if (topK > 0 && rank >= topK) dropped[id].push("top-k");
      if (topP > 0 && topP < 1 && reached >= topP) dropped[id].push("top-p");
      if (minP > 0 && logprobs[id] < logprobs[likeliest[0]] + Math.log(minP)) dropped[id].push("min-p");
      reached += Math.exp(logprobs[id]);
    });
    return dropped;
  }

  // The probability with which each token is drawn.
  function probabilities(logprobs, temperature, topP, topK, minP) {
    const likeliest = order(logprobs)[0];
    if (temperature === 0) return logprobs.map((_, id) => (id === likeliest ? 1 : 0));
    const dropped = cuts(logprobs, topP, topK, minP);
    const weights = logprobs.map((value, id) => (dropped[id].length > 0 ? 0 : Math.exp((value - logprobs[likeliest]) / temperature)));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map((weight) => weight / total);
  }

  return { order, cuts, probabilities };
})();
