// <prefix-cache>: prompts come and go; which blocks they share, which stay, and which is evicted next.
(function () {
  "use strict";

  const { html, svg, slider, button, plural } = TinyViz;
  const twin = TinyTwins.prefixCache;
  const LONGEST = 24;
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

  class PrefixCache extends TinyViz.Figure {
    build() {
      this.prompts = this.texts("prompts", "Be brief. Why?/Be brief. Who?/Be kind. Why?");
      this.numBegun = this.number("begun", Math.min(2, this.prompts.length), { min: 0, max: this.prompts.length });
      const restart = () => { this.restart(); this.redraw(); };
      this.controls = {
        blockSize: slider({ name: "block-size", label: "Tokens of a block", min: 2, max: 8, value: this.number("block-size", 4, { min: 2, max: 8 }), onchange: restart }),
        blocks: slider({ name: "blocks", label: "Blocks of the pool", min: 2, max: 24, value: this.number("blocks", 10, { min: 2, max: 24 }), onchange: restart }),
      };
      this.own = html("input", { type: "text", name: "own", maxlength: LONGEST, "aria-label": "A prompt of your own", placeholder: "a prompt of your own", oninput: () => this.buildActions() });
      this.ownButton = button("comes", () => { this.begin(this.own.value); this.redraw(); }, { name: "own-comes" });
      this.actions = html("div", { class: "viz-buttons" });
      this.event = html("p", { class: "viz-event", role: "status", "aria-live": "polite" });
      this.restart();
      this.buildActions();
      const own = html("div", { class: "viz-buttons viz-typed" }, this.own, this.ownButton);
      const story = this.numBegun > 0 ? "ends-A" : "comes-0";
      return [this.canvas, legend(), ...this.offer(Object.values(this.controls), story, own), this.event, this.summary];
    }

    texts(name, otherwise) {
      const texts = (this.getAttribute(name) ?? otherwise).split("/").map((text) => text.trim());
      if (texts.some((text) => text.length === 0 || text.length > LONGEST)) {
        throw new Error(`${name} must be texts of 1 to ${LONGEST} characters with / between them`);
      }
      return texts;
    }

    restart() {
      this.place = 0;
      this.cache = twin.make(this.controls.blocks.value, this.controls.blockSize.value);
      this.next = 0;
      for (const text of this.prompts.slice(0, this.numBegun)) this.begin(text);
    }

    begin(text) {
      const name = LETTERS[this.next % LETTERS.length];
      const result = twin.begin(this.cache, name, text);
      this.cache = result.cache;
      if (result.isAdmitted) this.next += 1;
      this.event.textContent = sentence(name, text, result);
    }

    leave(name) {
      const { text } = this.cache.tables[name];
      this.cache = twin.end(this.cache, name);
      this.event.textContent = `${name} has ended: ${shown(text)}. Its full blocks stay cached unless another request holds them.`;
    }

    buildActions() {
      const running = Object.keys(this.cache.tables);
      const isFull = running.length >= LETTERS.length;
      this.ownButton.disabled = !this.own.value || isFull;
      this.showActions([
        ...this.prompts.map((text, i) => [`comes-${i}`, `${shown(text)} comes`, () => this.begin(text), isFull]),
        ...running.map((name) => [`ends-${name}`, `${name} ends`, () => this.leave(name)]),
        ["restart", "Start again", () => this.restart()],
      ]);
    }

    draw(width) {
      this.buildActions();
      this.canvas.replaceChildren(picture(width, this.cache));
      this.summary.textContent = this.sentence();
    }

    sentence() {
      const { cache } = this;
      const numUsed = cache.counts.filter((count) => count > 0).length;
      const running = Object.entries(cache.tables).map(([name, { text }]) => `${name} ${shown(text)}`);
      const rate = cache.numAdmitted ? Math.round((100 * cache.numHit) / cache.numAdmitted) : 0;
      const next = cache.cached.length ? ` Evicted next, once no block is free: ${cache.cached.slice(0, 3).join(", then ")}.` : "";
      return `${running.length ? `Running: ${running.join(", ")}.` : "No request is running."} Of ${plural(cache.numBlocks, "block")} `
        + `${numUsed} used, ${cache.cached.length} cached, ${cache.free.length} free.${next} `
        + `${cache.numHit} of ${plural(cache.numAdmitted, "token")} were not computed: ${rate}%.`;
    }
  }

  const shown = (text) => `“${text}”`;

  function sentence(name, text, { isAdmitted, shared, numHit, numNew, numAvailable, evicted }) {
    if (!isAdmitted) return `${shown(text)} has to wait: it needs ${plural(numNew, "new block")}, and ${numAvailable} would be there.`;
    const found = shared.length ? `blocks ${shared.join(", ")} hold its beginning, ${numHit} of ${plural(text.length, "token")}` : `nothing of its ${plural(text.length, "token")} is there`;
    const gone = evicted.length ? `, evicted: ${evicted.join(", ")}` : "";
    return `${name} comes: ${found}; ${text.length - numHit} computed, ${plural(numNew, "new block")}${gone}.`;
  }

  // A box for each block that holds something, behind the block before it.
  function picture(width, cache) {
    const nodes = twin.tree(cache);
    const depth = Math.max(4, ...nodes.map((node) => node.depth + 1));
    const gap = 12;
    const column = Math.min(96, (width - 2) / depth);
    const box = column - gap;
    const step = 46;
    const tall = 36;
    const rows = Math.max(1, ...nodes.map((node) => node.row + 1));
    const size = Math.min(13, (box - 2) / (0.62 * cache.blockSize));
    const x = (node) => 1 + node.depth * column;
    const y = (node) => 1 + node.row * step;
    const picture = TinyViz.drawing(width, rows * step, `${nodes.length} of ${cache.numBlocks} blocks hold something`);
    if (!nodes.length) picture.append(svg("text", { class: "faint", x: 1, y: 22 }, "All blocks are free."));
    for (const node of nodes) {
      if (node.parent === null) continue;
      const from = nodes[node.parent];
      const middle = x(node) - gap / 2;
      picture.append(svg("path", { class: "bracket", d: `M${x(from) + box} ${y(from) + tall / 2}H${middle}V${y(node) + tall / 2}H${x(node)}` }));
    }
    for (const node of nodes) {
      const isHeld = node.state === "held";
      const below = node.state === "cached" ? `${node.block} · ${node.order}.` : node.count > 1 ? `${node.block} ×${node.count}` : String(node.block);
      picture.append(
        svg("rect", { class: { held: "seen", cached: "head", private: "private" }[node.state], x: x(node), y: y(node), width: box, height: tall, rx: 3 }),
        svg("text", { class: `mono${isHeld ? " chosen" : ""}`, x: x(node) + box / 2, y: y(node) + 15, "text-anchor": "middle", style: `font-size: ${size}px` }, node.own.replace(/ /g, "␣")),
        svg("text", { class: isHeld ? "chosen" : "faint", x: x(node) + box / 2, y: y(node) + 30, "text-anchor": "middle", style: `font-size: ${Math.min(11, box / 3)}px` }, below));
    }
    return picture;
  }

  function legend() {
    const sample = (text, name) => html("span", {}, svg("svg", { class: "viz-svg", width: 18, height: 16, "aria-hidden": "true" }, svg("rect", { class: name, x: 1, y: 1, width: 16, height: 14, rx: 2 })), text);
    return html("div", { class: "viz-legend" },
      sample("in use and shared: its number, × how many hold it", "seen"),
      sample("cached: its number · its place in the order of eviction", "head"),
      sample("in use by one request: not full, or its prefix has another block", "private"));
  }

  TinyViz.define("prefix-cache", PrefixCache);
})();
