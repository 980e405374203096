// <attention-mask>: which keys each query may see, and which heads share keys and values.
(function () {
  "use strict";

  const { html, svg, slider, choice, number } = TinyViz;
  const twin = TinyTwins.masks;
  const MASKS = [
    ["right", "right"], ["off-by-one", "wrong: misses itself"], ["peek", "wrong: sees one ahead"],
    ["left", "wrong: aligned to the left"], ["none", "wrong: not causal"],
  ];
  const GROUPINGS = [["repeat", "right: neighbours share"], ["tile", "wrong: tiled"]];
  const WHAT_IT_DOES = {
    right: "Each query sees itself and all before it, cached keys included.",
    "off-by-one": "Each query misses its own key: the newest token takes no part. The first query of a prompt sees nothing, and its softmax is 0 / 0.",
    peek: "Each query sees the token that it is to predict. Scored on a text such a model looks brilliant; where it generates, that token is not there yet.",
    left: "Query 0 is taken for position 0, as if nothing were cached. It is right for a first chunk alone; a decode sees one key, the first.",
    none: "Every query sees every key, later ones too. A decode shows no difference; in a prompt the keys of each layer are made from what comes after them.",
  };

  class AttentionMask extends TinyViz.Figure {
    build() {
      const change = () => this.redraw();
      const queries = this.number("queries", 4, { min: 1, max: 16 });
      const keys = this.number("keys", Math.max(6, queries), { min: queries, max: 24 });
      const start = this.number("chunk-start", keys - queries, { max: keys - queries });
      const heads = this.number("heads", 4, { min: 1, max: 16 });
      const kvHeads = this.number("kv-heads", heads % 2 === 0 ? heads / 2 : 1, { min: 1, max: heads });
      if (heads % kvHeads !== 0) throw new Error(`kv-heads must divide heads, and ${kvHeads} does not divide ${heads}`);
      const words = (options) => options.map(([word]) => word);
      this.mask = {
        mask: choice({ name: "mask", label: "Mask", options: MASKS, value: this.word("mask", words(MASKS), "right"), onchange: change }),
        queries: slider({ name: "queries", label: "Queries L", min: 1, max: 16, value: queries, onchange: () => this.fit() }),
        keys: slider({ name: "keys", label: "Keys S", min: queries, max: 24, value: keys, onchange: () => this.fit() }),
        start: slider({ name: "chunk-start", label: "First query at position", min: 0, max: keys - queries, value: start, onchange: () => this.fit() }),
        query: slider({ name: "query", label: "Look at query", min: 0, max: queries - 1, value: this.number("query", queries - 1, { max: queries - 1 }), onchange: change }),
      };
      this.heads = {
        grouping: choice({ name: "grouping", label: "Heads", options: GROUPINGS, value: this.word("grouping", words(GROUPINGS), "repeat"), onchange: change }),
        heads: slider({ name: "heads", label: "Query heads", min: 1, max: 16, value: heads, onchange: () => this.fitHeads() }),
        kvHeads: slider({ name: "kv-heads", label: "Heads of keys and values", values: twin.divisors(heads), value: kvHeads, onchange: change }),
        head: slider({ name: "head", label: "Look at query head", min: 0, max: heads - 1, value: this.number("head", 0, { max: heads - 1 }), onchange: change }),
      };
      this.isAtEnd = start === keys - queries;
      this.show = this.word("show", ["both", "mask", "heads"], "both");
      this.effect = html("p", { class: "viz-effect" });
      const isShown = { mask: this.show !== "heads", heads: this.show !== "mask" };
      const controls = [...(isShown.mask ? Object.values(this.mask) : []), ...(isShown.heads ? Object.values(this.heads) : [])];
      return [
        this.canvas,
        ...(isShown.mask ? [legend()] : []),
        ...this.offer(controls, isShown.mask ? "query" : "head"),
        this.summary, this.effect,
      ];
    }

    // L <= S and start + L <= S; a chunk at the end of the keys stays there.
    fit() {
      const { queries, keys, start, query } = this.mask;
      const wasAtEnd = this.isAtEnd && document.activeElement !== start.input;
      keys.setRange(queries.value, 24);
      start.setRange(0, keys.value - queries.value);
      if (wasAtEnd) start.value = keys.value - queries.value;
      query.setRange(0, queries.value - 1);
      this.isAtEnd = start.value === keys.value - queries.value;
      this.redraw();
    }

    fitHeads() {
      const { heads, kvHeads, head } = this.heads;
      const allowed = twin.divisors(heads.value);
      const wanted = Math.max(...allowed.filter((divisor) => divisor <= kvHeads.value));
      kvHeads.setValues(allowed);
      kvHeads.value = wanted;
      head.setRange(0, heads.value - 1);
      this.redraw();
    }

    draw(width) {
      const pictures = [];
      const sentences = [];
      if (this.show !== "heads") {
        pictures.push(this.drawMask(width));
        sentences.push(this.maskSentence());
      }
      if (this.show !== "mask") {
        pictures.push(this.drawHeads(Math.min(width, 480)));
        sentences.push(this.headSentence());
      }
      this.canvas.replaceChildren(...pictures);
      this.summary.textContent = sentences.join(" ");
      this.effect.textContent = this.show === "heads" ? "" : WHAT_IT_DOES[this.mask.mask.value];
      this.effect.hidden = this.show === "heads";
    }

    masks() {
      const { mask, queries, keys, start } = this.mask;
      const make = (rule) => twin.mask(rule, start.value, queries.value, keys.value);
      return [make(mask.value), make("right")];
    }

    drawMask(width) {
      const [found, right] = this.masks();
      const { queries, keys, start, query } = this.mask;
      const [L, S] = [queries.value, keys.value];
      const left = width < 500 ? 62 : 92;
      const size = Math.min(30, (width - left - 4) / S);
      const tall = Math.max(size, 16);
      const top = 44;
      const height = top + L * tall + 8;
      const node = TinyViz.drawing(width, height, `Mask of ${L} queries and ${S} keys`);
      node.append(span(left, 12, start.value * size, "cached"), span(left + start.value * size, 12, L * size, "this chunk"));
      for (let j = 0; j < S; j += 1) {
        if (size >= 15 || j % 2 === 0) node.append(svg("text", { class: "faint", x: left + (j + 0.5) * size, y: top - 6, "text-anchor": "middle" }, String(j)));
      }
      const y = top + query.value * tall;
      node.append(svg("rect", { class: "cursor", x: 0, y, width: left + S * size + 2, height: tall }));
      found.forEach((row, i) => {
        const middle = top + (i + 0.5) * tall + 4;
        node.append(
          svg("text", { x: 0, y: middle }, left > 70 ? `query ${i}` : `q ${i}`),
          svg("text", { class: "faint", x: left - 8, y: middle, "text-anchor": "end" }, `at ${start.value + i}`));
        row.forEach((sees, j) => node.append(cell(left + j * size, top + i * tall, size, tall, sees, right[i][j])));
      });
      const point = (event) => this.choose(Math.floor((event.clientY - node.getBoundingClientRect().top - top) / tall));
      node.addEventListener("pointerdown", point);
      node.addEventListener("pointermove", point);
      return node;
    }

    choose(row) {
      const { query, queries } = this.mask;
      if (row < 0 || row >= queries.value || row === query.value) return;
      query.value = row;
      this.redraw();
    }

    maskSentence() {
      const [found, right] = this.masks();
      const i = this.mask.query.value;
      const seen = (row) => row.flatMap((sees, j) => (sees ? [j] : []));
      const [saw, should] = [seen(found[i]), seen(right[i])];
      const all = (mask) => mask.flat().filter(Boolean).length;
      const but = saw.length === should.length ? "" : ` It should see ${spelled(should)}.`;
      return `Query ${i} stands at position ${this.mask.start.value + i} and sees ${spelled(saw)}: `
        + `${saw.length} of ${found[i].length}.${but} In all ${number(all(found))} of ${number(found.length * found[0].length)} pairs are computed`
        + `${all(found) === all(right) ? "." : `, not ${number(all(right))}.`}`;
    }

    drawHeads(width) {
      const { grouping, heads, kvHeads, head } = this.heads;
      const [numHeads, numKvHeads] = [heads.value, kvHeads.value];
      const left = 86;
      const step = Math.min(46, (width - left - 8) / numHeads);
      const size = Math.min(24, step - 3);
      const x = (i, n) => left + ((i + 0.5) * numHeads * step) / n;
      const [top, bottom] = [24, 92];
      const node = TinyViz.drawing(width, 120, `${numHeads} query heads share ${numKvHeads} heads of keys and values`,
        svg("text", { x: 0, y: top + 4 }, "query heads"), svg("text", { x: 0, y: bottom + 4 }, "keys, values"));
      const read = (i) => twin.kvHead(grouping.value, i, numHeads, numKvHeads);
      const isRight = (i) => read(i) === twin.kvHead("repeat", i, numHeads, numKvHeads);
      const chosen = read(head.value);
      for (let i = 0; i < numHeads; i += 1) {
        const kind = `${isRight(i) ? "link" : "link wrong"}${i === head.value ? " chosen" : ""}`;
        node.append(svg("line", { class: kind, x1: x(i, numHeads), y1: top, x2: x(read(i), numKvHeads), y2: bottom }));
      }
      for (let i = 0; i < numHeads; i += 1) node.append(...headMark("circle", x(i, numHeads), top, size, i, i === head.value));
      for (let i = 0; i < numKvHeads; i += 1) node.append(...headMark("rect", x(i, numKvHeads), bottom, size, i, i === chosen));
      return node;
    }

    headSentence() {
      const { grouping, heads, kvHeads, head } = this.heads;
      const [numHeads, numKvHeads] = [heads.value, kvHeads.value];
      const read = (i, how = grouping.value) => twin.kvHead(how, i, numHeads, numKvHeads);
      const chosen = read(head.value);
      const all = Array.from({ length: numHeads }, (_, i) => i);
      const sharing = all.filter((i) => read(i) === chosen);
      const numWrong = all.filter((i) => read(i) !== read(i, "repeat")).length;
      const wrong = numWrong > 0 ? ` ${numWrong} of ${numHeads} query heads read the keys of another group; the shapes agree, so no error tells.` : "";
      return `Query head ${head.value} reads head ${chosen} of keys and values, shared by query heads ${sharing.join(", ")}. `
        + `The cache holds ${numKvHeads} heads in place of ${numHeads}.${wrong}`;
    }
  }

  // A bracket over columns with its name.
  function span(x, y, width, text) {
    if (width === 0) return svg("g");
    const isRoomy = width > text.length * 6;
    return svg("g", {},
      svg("path", { class: "bracket", d: `M${x + 1} ${y + 8}V${y + 4}H${x + width - 1}V${y + 8}` }),
      svg("text", { class: "faint", x: x + width / 2, y: y, "text-anchor": "middle" }, isRoomy ? text : ""));
  }

  // Seen: filled. Not seen: a dot. Seen and should not be: crossed. Not seen and should be: an empty dashed square.
  function cell(x, y, width, height, sees, should) {
    const inset = width > 12 ? 1.5 : 0.75;
    const box = { x: x + inset, y: y + inset, width: width - 2 * inset, height: height - 2 * inset };
    const [cx, cy, arm] = [x + width / 2, y + height / 2, width * 0.2];
    if (sees && should) return svg("rect", { class: "seen", ...box });
    if (sees) {
      return svg("g", {}, svg("rect", { class: "leak", ...box }),
        svg("path", { class: "cross", d: `M${cx - arm} ${cy - arm}l${2 * arm} ${2 * arm}m0 ${-2 * arm}l${-2 * arm} ${2 * arm}` }));
    }
    if (should) return svg("rect", { class: "missed", ...box });
    return svg("circle", { class: "unseen", cx, cy, r: Math.max(1, width * 0.06) });
  }

  function legend() {
    const sample = (text, sees, should) => html("span", {},
      svg("svg", { class: "viz-svg", width: 18, height: 18, "aria-hidden": "true" }, cell(0, 0, 18, 18, sees, should)), text);
    return html("div", { class: "viz-legend" }, sample("seen", true, true), sample("hidden", false, false),
      sample("hidden and should be seen", false, true), sample("seen and should be hidden", true, false));
  }

  function headMark(shape, x, y, size, i, isChosen) {
    const kind = `head${isChosen ? " chosen" : ""}`;
    const node = shape === "circle"
      ? svg("circle", { class: kind, cx: x, cy: y, r: size / 2 })
      : svg("rect", { class: kind, x: x - size / 2, y: y - size / 2, width: size, height: size });
    const text = svg("text", { class: isChosen ? "chosen" : null, x, y: y + 4, "text-anchor": "middle" }, size >= 17 ? String(i) : "");
    return [node, text];
  }

  // 0, 1, 2 -> "keys 0 to 2"
  function spelled(keys) {
    if (keys.length === 0) return "no key";
    return keys.length === 1 ? `key ${keys[0]}` : `keys ${keys[0]} to ${keys[keys.length - 1]}`;
  }

  TinyViz.define("attention-mask", AttentionMask);
})();
