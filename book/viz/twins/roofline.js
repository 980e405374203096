// What a step of a model reads and computes. Bytes are those of tiny_llm_ref/model/roofline.py.
// Pure functions; tests/book/test_twins.py proves them equal to the Python.
var TinyTwins = TinyTwins || {};

TinyTwins.roofline = (function () {
  "use strict";

  const GROUP_SIZE = 64;

  // [out, in] of the matrices of one layer.
  function layerMatrices(shape) {
    const query = shape.heads * shape.headDim;
    const keys = shape.kvHeads * shape.headDim;
    const { hidden, intermediate } = shape;
    return [
      [query, hidden], [keys, hidden], [keys, hidden], [hidden, query],
      [intermediate, hidden], [intermediate, hidden], [hidden, intermediate],
    ];
  }

  const floatBytes = (bits) => (bits === 32 ? 4 : 2);

  // Packed matrices have a scale and a bias for each group of 64.
  function matrixBytes([rows, columns], bits) {
    if (bits >= 16) return (rows * columns * bits) / 8;
    return (rows * columns * bits) / 8 + 2 * rows * (columns / GROUP_SIZE) * floatBytes(bits);
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // decode_bytes_per_token of a tied model.
  function weightBytes(shape, bits) {
    const layer = sum(layerMatrices(shape).map((matrix) => matrixBytes(matrix, bits)));
    const norms = shape.layers * (2 * shape.hidden + (shape.qkNorm ? 2 * shape.headDim : 0)) + shape.hidden;
    return shape.layers * layer + matrixBytes([shape.vocab, shape.hidden], bits) + norms * floatBytes(bits);
  }

  // cache_bytes_per_token
  const cacheBytes = (shape, bits) => 2 * shape.layers * shape.kvHeads * shape.headDim * floatBytes(bits);

  // Two operations for each weight of the layers, and for each of the output head.
  const layerOperations = (shape) => 2 * shape.layers * sum(layerMatrices(shape).map(([rows, columns]) => rows * columns));
  const headOperations = (shape) => 2 * shape.vocab * shape.hidden;

  // Scores and weighted values of one query over so many keys.
  const attentionOperations = (shape, keys) => 4 * shape.layers * shape.heads * shape.headDim * keys;

  // One token for each of `batch` requests, each with `context` tokens cached.
  function decode(shape, bits, batch, context) {
    return {
      tokens: batch,
      operations: batch * (layerOperations(shape) + headOperations(shape) + attentionOperations(shape, context + 1)),
      bytes: weightBytes(shape, bits) + batch * context * cacheBytes(shape, bits),
    };
  }

  // The last chunk of a prompt after `context` tokens: logits of one token only.
  function prefill(shape, bits, chunk, context) {
    const keys = chunk * context + (chunk * (chunk + 1)) / 2;
    return {
      tokens: chunk,
      operations: chunk * layerOperations(shape) + headOperations(shape) + attentionOperations(shape, keys),
      bytes: weightBytes(shape, bits) + context * cacheBytes(shape, bits),
    };
  }

  // Where a step lies under the roof of a machine: bytes and operations per second.
  function place(step, bandwidth, peak) {
    const intensity = step.operations / step.bytes;
    const rate = Math.min(peak, bandwidth * intensity);
    return { intensity, rate, seconds: step.operations / rate, tokensPerSecond: (step.tokens * rate) / step.operations, isMemoryBound: bandwidth * intensity < peak };
  }

  return { weightBytes, cacheBytes, decode, prefill, place };
})();
