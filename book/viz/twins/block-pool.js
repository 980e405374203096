// Blocks, tables, reservations and slots of scheduling.block_manager.BlockManager and paging.paged_kv_cache.slot_mapping.
// Pure functions; tests/book/test_twins_of_blocks.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.blockPool = (function () {
  "use strict";

  // free: the last one is taken next; tables: {id, blocks, length, reserved} in the order of admission.
  const make = (numBlocks, blockSize) => ({
    numBlocks, blockSize, free: Array.from({ length: numBlocks }, (_, i) => numBlocks - 1 - i), tables: [],
  });

  const blocksFor = (pool, numTokens) => Math.ceil(numTokens / pool.blockSize);

  const numReserved = (pool) => pool.tables.reduce((sum, table) => sum + table.reserved, 0);

  const tableOf = (pool, id) => pool.tables.find((table) => table.id === id) ?? null;

  const replace = (pool, free, table) => ({
    ...pool, free, tables: pool.tables.map((each) => (each.id === table.id ? table : each)),
  });

  // The pool with so many tokens more of a sequence that runs; null without room.
  function append(pool, id, numTokens) {
    const table = tableOf(pool, id);
    const length = table.length + numTokens;
    const numNew = Math.max(0, blocksFor(pool, length) - table.blocks.length);
    if (numNew > pool.free.length - numReserved(pool) + table.reserved) return null;
    const free = pool.free.slice(0, pool.free.length - numNew);
    const taken = pool.free.slice(free.length).reverse();
    const reserved = table.reserved - Math.min(table.reserved, numNew);
    return replace(pool, free, { ...table, blocks: [...table.blocks, ...taken], length, reserved });
  }

  // The pool with a new sequence that has `length` tokens and may come to have `most`; null without room.
  function admit(pool, id, length, most) {
    const reserved = blocksFor(pool, Math.max(length, most));
    if (reserved > pool.free.length - numReserved(pool)) return null;
    return append({ ...pool, tables: [...pool.tables, { id, blocks: [], length: 0, reserved }] }, id, length);
  }

  // The pool without a sequence; of its table the last block is put back first.
  function release(pool, id) {
    const { blocks } = tableOf(pool, id);
    const tables = pool.tables.filter((table) => table.id !== id);
    return { ...pool, tables, free: [...pool.free, ...blocks.slice().reverse()] };
  }

  // The slot of each token of a sequence from `start` on.
  function slotMapping(pool, id, start, numTokens) {
    const { blocks } = tableOf(pool, id);
    const slot = (position) => blocks[Math.floor(position / pool.blockSize)] * pool.blockSize + (position % pool.blockSize);
    return Array.from({ length: numTokens }, (_, i) => slot(start + i));
  }

  return { make, blocksFor, numReserved, tableOf, append, admit, release, slotMapping };
})();
