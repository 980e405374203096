// Which keys a query may see, and which head of keys and values a query head reads.
// Pure functions; tests/book/test_twins.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.masks = (function () {
  "use strict";

  // Whether query i of a chunk that starts at `start` sees key j. `right` is chunked_attention_mask, and
  // causal_mask where the chunk is the end of the keys; the others are mistakes.
  const RULES = {
    right: (i, j, start) => j <= start + i,
    "off-by-one": (i, j, start) => j < start + i,
    peek: (i, j, start) => j <= start + i + 1,
    left: (i, j) => j <= i,
    none: () => true,
  };

  // Rows of booleans, [L][S].
  function mask(rule, start, L, S) {
    return Array.from({ length: L }, (_, i) => Array.from({ length: S }, (_, j) => RULES[rule](i, j, start)));
  }

  // The head of keys and values that a query head reads: neighbours share (`repeat`), or wrongly `tile`.
  function kvHead(grouping, head, numHeads, numKvHeads) {
    return grouping === "repeat" ? Math.floor(head / (numHeads / numKvHeads)) : head % numKvHeads;
  }

  const divisors = (n) => Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0);

  return { mask, kvHead, divisors };
})();
