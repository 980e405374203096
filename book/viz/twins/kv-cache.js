// Slots and lengths of dense_kv_cache.BatchingKvCache, and what they cost in bytes.
// Pure functions; tests/book/test_twins.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.kvCache = (function () {
  "use strict";

  const MIN_CAPACITY = 64;

  // rows: {slot, length} in the order of the batch; capacity: tokens that each row has room for.
  const make = (numSlots) => ({ numSlots, rows: [], capacity: 0 });

  // The cache grows to at least the double, and never shrinks.
  function reserve(capacity, wanted) {
    return wanted <= capacity ? capacity : Math.max(wanted, 2 * capacity, MIN_CAPACITY);
  }

  function add(cache, slot, length) {
    return { ...cache, rows: [...cache.rows, { slot, length }], capacity: reserve(cache.capacity, length) };
  }

  // The last row moves into the place of the one that leaves.
  function remove(cache, slot) {
    const rows = cache.rows.slice();
    const last = rows.pop();
    if (last.slot !== slot) rows[rows.findIndex((row) => row.slot === slot)] = last;
    return { ...cache, rows };
  }

  function decode(cache) {
    const rows = cache.rows.map((row) => ({ ...row, length: row.length + 1 }));
    return { ...cache, rows, capacity: reserve(cache.capacity, longest({ rows })) };
  }

  const longest = (cache) => Math.max(0, ...cache.rows.map((row) => row.length));

  const firstFree = (cache) => {
    const used = cache.rows.map((row) => row.slot);
    return Array.from({ length: cache.numSlots }, (_, slot) => slot).find((slot) => !used.includes(slot)) ?? null;
  };

  // Whether the mask of a decode hides place j of each row: [rows][longest].
  function hidden(cache) {
    const width = longest(cache);
    return cache.rows.map((row) => Array.from({ length: width }, (_, j) => j >= row.length));
  }

  // Keys and values that a token leaves in all layers.
  const bytesPerToken = (layers, kvHeads, headDim, bits) => (2 * layers * kvHeads * headDim * bits) / 8;

  // Places of the arrays, occupied or not.
  const numPlaces = (cache) => cache.numSlots * cache.capacity;

  return { make, add, remove, decode, longest, firstFree, hidden, bytesPerToken, numPlaces };
})();
