// <block-pool>: the blocks of a pool as sequences are admitted, grow and leave, with a block table and its slots.
(function () {
  "use strict";

  const { html, svg, slider, number, plural, table } = TinyViz;
  const twin = TinyTwins.blockPool;
  const MOST_RUNNING = 6;

  class BlockPool extends TinyViz.Figure {
    build() {
      const change = () => this.redraw();
      const show = () => { this.chosen = this.controls.shown.value; this.redraw(); };
      const restart = () => { this.restart(); this.redraw(); };
      this.startPrompts = this.numbers("prompts", "9 5", 1, 64);
      if (this.startPrompts.length > MOST_RUNNING) throw new Error(`prompts are more than ${MOST_RUNNING}`);
      this.controls = {
        blocks: slider({ name: "blocks", label: "Blocks of the pool", min: 4, max: 32, value: this.number("blocks", 12, { min: 4, max: 32 }), onchange: restart }),
        blockSize: slider({ name: "block-size", label: "Tokens of a block", min: 1, max: 8, value: this.number("block-size", 4, { min: 1, max: 8 }), onchange: restart }),
        join: slider({ name: "join", label: "Prompt of the next sequence", min: 1, max: 64, value: this.number("join", 7, { min: 1, max: 64 }), onchange: change }),
        answer: slider({ name: "answer", label: "Most tokens of an answer", min: 1, max: 32, value: this.number("answer", 6, { min: 1, max: 32 }), onchange: change }),
        shown: slider({ name: "shown", label: "Sequence that is shown", values: [0], value: 0, format: (id) => (id === null ? "none" : String(id)), onchange: show }),
      };
      this.actions = html("div", { class: "viz-buttons" });
      this.event = html("p", { class: "viz-event", role: "status", "aria-live": "polite" });
      this.rows = html("div", { class: "viz-scroll", tabindex: 0, role: "region", "aria-label": "block table" });
      this.restart();
      this.buildActions();
      return [this.canvas, legend(), ...this.offer(Object.values(this.controls), "decode"), this.event, this.summary, this.rows];
    }

    restart() {
      this.place = 0;
      this.pool = twin.make(this.controls.blocks.value, this.controls.blockSize.value);
      this.most = {};
      this.next = 0;
      this.chosen = null;
      for (const length of this.startPrompts) this.join(length);
      this.chosen = this.pool.tables.length > 0 ? this.pool.tables[0].id : null;
      this.event.textContent = "";
    }

    join(length) {
      const most = length + this.controls.answer.value;
      const needed = twin.blocksFor(this.pool, most);
      const free = this.pool.free.length - twin.numReserved(this.pool);
      const after = twin.admit(this.pool, this.next, length, most);
      if (after === null) {
        this.event.textContent = `It waits: it may need ${plural(needed, "block")}, and ${number(free)} ${free === 1 ? "is" : "are"} free and not reserved.`;
        return;
      }
      this.pool = after;
      this.most[this.next] = most;
      this.chosen = this.next;
      const { blocks, reserved } = twin.tableOf(after, this.next);
      this.event.textContent = `Sequence ${this.next} was admitted: ${plural(blocks.length, "block")} given, ${number(reserved)} reserved.`;
      this.next += 1;
    }

    // A token for each that may have one more; reservations are kept, so none is refused.
    decode() {
      const said = [];
      for (const { id, length, blocks } of this.pool.tables) {
        if (length >= this.most[id]) continue;
        this.pool = twin.append(this.pool, id, 1);
        const now = twin.tableOf(this.pool, id).blocks;
        if (now.length > blocks.length) said.push(`sequence ${id} took block ${now[now.length - 1]}`);
      }
      const text = said.length > 0 ? said.join(", ") : "no new block was needed";
      this.event.textContent = `${text[0].toUpperCase()}${text.slice(1)}.`;
    }

    leave(id) {
      const { blocks, reserved } = twin.tableOf(this.pool, id);
      this.pool = twin.release(this.pool, id);
      this.event.textContent = `Sequence ${id} left: ${blocks.length === 1 ? "block" : "blocks"} ${blocks.join(", ")} put back, the last one first, and ${number(reserved)} reserved no longer.`;
    }

    buildActions() {
      const { tables } = this.pool;
      this.showActions([
        ["decode", "Decode a token", () => this.decode(), tables.every(({ id, length }) => length >= this.most[id])],
        ["joins", `A prompt of ${this.controls.join.value} joins`, () => this.join(this.controls.join.value), tables.length >= MOST_RUNNING],
        ...tables.map(({ id }) => [`leave-${id}`, `Sequence ${id} leaves`, () => this.leave(id)]),
        ["restart", "Start again", () => this.restart()],
      ]);
    }

    draw(width) {
      const ids = this.pool.tables.map((each) => each.id);
      if (!ids.includes(this.chosen)) this.chosen = ids.length > 0 ? ids[0] : null;
      this.controls.shown.setValues(ids.length > 0 ? ids : [null]);
      this.controls.shown.value = this.chosen;
      this.buildActions();
      this.canvas.replaceChildren(picture(width, this.pool, this.chosen));
      this.rows.replaceChildren(this.chosen === null ? html("p", {}, "No sequence is running.") : this.tableOfChosen());
      this.summary.textContent = this.sentence();
    }

    tableOfChosen() {
      const { blocks, length } = twin.tableOf(this.pool, this.chosen);
      const size = this.pool.blockSize;
      const span = (first, last) => (first === last ? String(first) : `${first} to ${last}`);
      const rows = blocks.map((block, i) => {
        const slots = twin.slotMapping(this.pool, this.chosen, i * size, Math.min(size, length - i * size));
        return [String(i), String(block), span(i * size, i * size + slots.length - 1), span(slots[0], slots[slots.length - 1])];
      });
      return table(`Block table of sequence ${this.chosen}, ${plural(length, "token")} of at most ${this.most[this.chosen]}`, ["entry", "block", "tokens", "slots"], rows);
    }

    sentence() {
      const { numBlocks, blockSize, free, tables } = this.pool;
      const reserved = twin.numReserved(this.pool);
      const given = numBlocks - free.length;
      const held = tables.reduce((sum, each) => sum + each.length, 0);
      return `${given} of ${plural(numBlocks, "block")} given, ${reserved} reserved, ${free.length - reserved} free. `
        + `${plural(held, "token")} in the ${given * blockSize} slots given: ${plural(given * blockSize - held, "slot")} unfilled, `
        + `at most ${blockSize - 1} per sequence. `
        + (free.length > 0 ? `The next block taken is ${free[free.length - 1]}.` : "No block is left to take.");
    }
  }

  // Each block is a row of slots with its number before and its holder behind; below, how many are reserved.
  function picture(width, pool, chosen) {
    const { numBlocks, blockSize } = pool;
    const columns = Math.max(1, Math.min(4, Math.floor(width / 165), numBlocks));
    const perColumn = Math.ceil(numBlocks / columns);
    const wide = width / columns;
    const slot = Math.min(26, (wide - 62) / blockSize);
    const step = 24;
    const top = 22;
    const bottom = top + perColumn * step + 12;
    const holder = new Map();
    for (const table of pool.tables) table.blocks.forEach((block, i) => holder.set(block, { table, i }));
    const node = TinyViz.drawing(width, bottom + 40, `${numBlocks - pool.free.length} of ${numBlocks} blocks are given`);
    for (let column = 0; column < Math.ceil(numBlocks / perColumn); column += 1) {
      node.append(svg("text", { class: "faint", x: column * wide, y: 12 }, "block"));
    }
    for (let block = 0; block < numBlocks; block += 1) {
      const x = Math.floor(block / perColumn) * wide;
      const y = top + (block % perColumn) * step;
      const held = holder.get(block);
      const isChosen = held !== undefined && held.table.id === chosen;
      node.append(svg("text", { class: held ? null : "faint", x: x + 18, y: y + 13, "text-anchor": "end" }, String(block)));
      for (let place = 0; place < blockSize; place += 1) {
        const left = x + 26 + place * slot;
        const position = held ? held.i * blockSize + place : 0;
        const isStored = held !== undefined && position < held.table.length;
        const isNewest = isStored && position === held.table.length - 1;
        const look = !isStored ? "room" : !isChosen ? "unseen" : isNewest ? "newest" : "seen";
        node.append(svg("rect", { class: look, x: left + 0.5, y, width: slot - 2, height: 17 }));
        if (isStored && isChosen && slot >= 17) {
          node.append(svg("text", { class: "chosen", x: left + slot / 2 - 0.5, y: y + 13, "text-anchor": "middle" }, String(position)));
        }
      }
      if (held) node.append(svg("text", { class: isChosen ? null : "faint", x: x + 26 + blockSize * slot + 3, y: y + 13 }, `s${held.table.id}`));
    }
    return TinyViz.add(node, accounts(width, bottom, pool));
  }

  // A square for each block: given, reserved or free, wherever they lie.
  function accounts(width, y, pool) {
    const given = pool.numBlocks - pool.free.length;
    const reserved = twin.numReserved(pool);
    const left = 62;
    const size = Math.min(16, (width - left - 4) / pool.numBlocks);
    const marks = [svg("text", { class: "faint", x: 0, y: y + 14 }, "in all")];
    for (let i = 0; i < pool.numBlocks; i += 1) {
      const x = left + i * size;
      const box = { x: x + 0.5, y: y + 2, width: size - 2, height: 14 };
      marks.push(svg("rect", { class: i < given ? "unseen" : "room", ...box }));
      if (i >= given && i < given + reserved) marks.push(svg("line", { class: "masked", x1: x + 2, y1: y + 14, x2: x + size - 3, y2: y + 4 }));
    }
    marks.push(svg("text", { class: "faint", x: left, y: y + 33 }, `${given} given, ${reserved} reserved, ${pool.free.length - reserved} free`));
    return marks;
  }

  function legend() {
    const sample = (text, ...marks) => html("span", {}, svg("svg", { class: "viz-svg", width: 18, height: 16, "aria-hidden": "true" }, marks), text);
    const box = { x: 2, y: 1, width: 14, height: 14 };
    return html("div", { class: "viz-legend" },
      sample("token of the sequence shown", svg("rect", { class: "seen", ...box })),
      sample("its newest", svg("rect", { class: "newest", ...box })),
      sample("of another", svg("rect", { class: "unseen", ...box })),
      sample("empty slot", svg("rect", { class: "room", ...box })),
      sample("reserved", svg("rect", { class: "room", ...box }), svg("line", { class: "masked", x1: 4, y1: 13, x2: 14, y2: 3 })));
  }

  TinyViz.define("block-pool", BlockPool);
})();
