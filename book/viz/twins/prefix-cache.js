// Blocks of scheduling.prefix_cache.PrefixCachingBlockManager; a token is a character, a prefix is its text.
// Pure functions; tests/book/test_twins_of_prefixes.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.prefixCache = (function () {
  "use strict";

  // counts: who holds each block; prefixes: the text that ends with a registered one, or null; free: the last
  // one is taken first; cached: the first one is evicted first; tables: {text, blocks, numShared} of who runs.
  const make = (numBlocks, blockSize) => ({
    numBlocks, blockSize, counts: Array(numBlocks).fill(0), prefixes: Array(numBlocks).fill(null),
    free: Array.from({ length: numBlocks }, (_, i) => numBlocks - 1 - i), cached: [], tables: {},
    numHit: 0, numAdmitted: 0,
  });

  const copy = (cache) => ({
    ...cache, counts: cache.counts.slice(), prefixes: cache.prefixes.slice(), free: cache.free.slice(),
    cached: cache.cached.slice(), tables: { ...cache.tables },
  });

  const numBlocksFor = (cache, numTokens) => Math.ceil(numTokens / cache.blockSize);
  const numFull = (cache, text) => Math.floor(text.length / cache.blockSize);
  const prefixOf = (cache, text, place) => text.slice(0, (place + 1) * cache.blockSize);

  // The longest row of registered blocks that hold its first tokens.
  function findShared(cache, text) {
    const blocks = [];
    for (let i = 0; i < numFull(cache, text); i += 1) {
      const block = cache.prefixes.indexOf(prefixOf(cache, text, i));
      if (block === -1) break;
      blocks.push(block);
    }
    return blocks;
  }

  // A block that nobody holds: a free one, else the one that was cached first, whose content is forgotten.
  function take(cache) {
    if (cache.free.length) return cache.free.pop();
    const block = cache.cached.shift();
    cache.prefixes[block] = null;
    return block;
  }

  // Admit a text, compute all of it and register its full blocks: {cache, isAdmitted, shared, numHit, numNew,
  // numAvailable, evicted}. Where it does not fit, nothing changes.
  function begin(before, name, text) {
    const shared = findShared(before, text);
    const numNew = numBlocksFor(before, text.length) - shared.length;
    const numAvailable = before.free.length + before.cached.filter((block) => !shared.includes(block)).length;
    const numHit = Math.min(shared.length * before.blockSize, text.length - 1);
    const evicted = before.cached.filter((block) => !shared.includes(block)).slice(0, Math.max(0, numNew - before.free.length));
    if (numNew > numAvailable) return { cache: before, isAdmitted: false, shared, numHit, numNew, numAvailable, evicted: [] };
    const cache = copy(before);
    cache.cached = cache.cached.filter((block) => !shared.includes(block));
    const blocks = shared.slice();
    for (let i = 0; i < numNew; i += 1) blocks.push(take(cache));
    for (const block of blocks) cache.counts[block] += 1;
    for (let i = shared.length; i < numFull(cache, text); i += 1) {
      const prefix = prefixOf(cache, text, i);
      if (!cache.prefixes.includes(prefix)) cache.prefixes[blocks[i]] = prefix;
    }
    cache.tables[name] = { text, blocks, numShared: shared.length };
    cache.numHit += numHit;
    cache.numAdmitted += text.length;
    return { cache, isAdmitted: true, shared, numHit, numNew, numAvailable, evicted };
  }

  // Who runs lets go of its blocks, the last one first.
  function end(before, name) {
    const cache = copy(before);
    for (const block of cache.tables[name].blocks.slice().reverse()) {
      cache.counts[block] -= 1;
      if (cache.counts[block] === 0) (cache.prefixes[block] === null ? cache.free : cache.cached).push(block);
    }
    delete cache.tables[name];
    return cache;
  }

  // Every block that holds something, as a tree: {block, text, own, depth, row, parent, state, count, order}.
  // `own` are the block's own tokens, `order` is its place in the order of eviction, counted from 1; `parent` is the
  // index of another node, or null. The first child stands in its parent's row, each other one below.
  function tree(cache) {
    const nodes = cache.prefixes.flatMap((text, block) => (text === null ? [] : [{ block, text, own: text.slice(-cache.blockSize) }]));
    for (const { text, blocks } of Object.values(cache.tables)) {
      blocks.forEach((block, i) => {
        if (cache.prefixes[block] !== null) return;
        nodes.push({ block, text: prefixOf(cache, text, i), own: text.slice(i * cache.blockSize, (i + 1) * cache.blockSize), isPrivate: true });
      });
    }
    nodes.sort((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : a.block - b.block));
    for (const node of nodes) {
      node.depth = numBlocksFor(cache, node.text.length) - 1;
      node.count = cache.counts[node.block];
      node.order = cache.cached.indexOf(node.block) + 1;
      node.state = node.isPrivate ? "private" : node.order ? "cached" : "held";
    }
    return placed(cache, nodes);
  }

  function placed(cache, nodes) {
    const parentOf = (node) => {
      const text = node.text.slice(0, node.depth * cache.blockSize);
      const found = nodes.findIndex((each) => each.text === text && each !== node);
      return node.depth === 0 || found === -1 ? null : found;
    };
    const parents = nodes.map(parentOf);
    const ordered = [];
    let row = -1;
    const place = (i, parent, isFirst) => {
      if (!isFirst) row += 1;
      ordered.push({ ...nodes[i], row, parent });
      const index = ordered.length - 1;
      nodes.map((_, j) => j).filter((j) => parents[j] === i).forEach((j, k) => place(j, index, k === 0));
    };
    nodes.forEach((_, i) => { if (parents[i] === null) place(i, null, false); });
    return ordered;
  }

  return { make, findShared, begin, end, tree };
})();
