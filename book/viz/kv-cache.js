// <kv-cache>: the slots of a BatchingKvCache as requests join, grow and leave.
(function () {
  "use strict";

  const { html, svg, slider, choice, number, bytes, plural } = TinyViz;
  const twin = TinyTwins.kvCache;
  const MOST_TOKENS = 256;

  class KvCache extends TinyViz.Figure {
    build() {
      const change = () => this.redraw();
      const slots = this.number("slots", 4, { min: 1, max: 8 });
      this.startLengths = this.numbers("lengths", slots < 3 ? "9" : "9 5 12", 1, 128);
      if (this.startLengths.length > slots) throw new Error(`lengths are more than the ${slots} slots`);
      this.controls = {
        slots: slider({ name: "slots", label: "Slots", min: 1, max: 8, value: slots, onchange: () => { this.restart(); this.redraw(); } }),
        join: slider({ name: "join", label: "Tokens of the next to join", min: 1, max: 128, value: this.number("join", 7, { min: 1, max: 128 }), onchange: change }),
        layers: slider({ name: "layers", label: "Layers", min: 1, max: 64, value: this.number("layers", 4, { min: 1, max: 64 }), onchange: change }),
        kvHeads: slider({ name: "kv-heads", label: "Heads of keys and values", min: 1, max: 16, value: this.number("kv-heads", 2, { min: 1, max: 16 }), onchange: change }),
        headDim: slider({ name: "head-dim", label: "Dimensions of a head", values: [32, 64, 128, 256], value: this.number("head-dim", 32, { min: 1, max: 1024 }), onchange: change }),
        bits: choice({ name: "bits", label: "A number is kept in", options: [["32", "32 bits"], ["16", "16 bits"]], value: this.word("bits", ["16", "32"], "32"), onchange: change }),
      };
      this.actions = html("div", { class: "viz-buttons" });
      this.event = html("p", { class: "viz-event", role: "status", "aria-live": "polite" });
      this.restart();
      this.buildActions();
      return [this.canvas, legend(), ...this.offer(Object.values(this.controls), "decode"), this.event, this.summary];
    }

    restart() {
      this.place = 0;
      this.cache = twin.make(this.controls.slots.value);
      this.next = 0;
      for (const length of this.startLengths.slice(0, this.cache.numSlots)) this.join(length);
      this.event.textContent = "";
    }

    join(length) {
      const slot = twin.firstFree(this.cache);
      this.cache = twin.add(this.cache, slot, length);
      this.cache.rows[this.cache.rows.length - 1].name = this.next;
      this.event.textContent = `Request ${this.next} joined in slot ${slot}, which is the first free one, and is row ${this.cache.rows.length - 1} of the batch.`;
      this.next += 1;
    }

    decode(times) {
      const { capacity } = this.cache;
      let done = 0;
      while (done < times && twin.longest(this.cache) < MOST_TOKENS) {
        this.cache = twin.decode(this.cache);
        done += 1;
      }
      const grew = this.cache.capacity > capacity ? ` The arrays were full and grew to ${this.cache.capacity} places a row.` : "";
      this.event.textContent = `Each row grew by ${plural(done, "token")}.${grew}`;
    }

    leave(slot) {
      const rows = this.cache.rows;
      const row = rows.findIndex((each) => each.slot === slot);
      const last = rows[rows.length - 1];
      this.cache = twin.remove(this.cache, slot);
      const moved = last.slot === slot
        ? "It was the last row, so nothing moved."
        : `The last row, slot ${last.slot}, moved into row ${row}: ${plural(last.length, "token")} copied.`;
      this.event.textContent = `Request ${rows[row].name} left slot ${slot}. ${moved}`;
    }

    buildActions() {
      const isFull = twin.firstFree(this.cache) === null;
      const isIdle = this.cache.rows.length === 0 || twin.longest(this.cache) >= MOST_TOKENS;
      const leaves = this.cache.rows.map((row) => row.slot).sort((a, b) => a - b)
        .map((slot) => [`leave-${slot}`, `Slot ${slot} leaves`, () => this.leave(slot)]);
      this.showActions([
        ["decode", "Decode a token", () => this.decode(1), isIdle],
        ["decode-8", "Decode 8 tokens", () => this.decode(8), isIdle],
        ["joins", `A request of ${this.controls.join.value} joins`, () => this.join(this.controls.join.value), isFull],
        ...leaves,
        ["restart", "Start again", () => this.restart()],
      ]);
    }

    draw(width) {
      this.buildActions();
      this.canvas.replaceChildren(picture(width, this.cache));
      this.summary.textContent = this.sentence();
    }

    sentence() {
      const { layers, kvHeads, headDim, bits } = this.controls;
      const perToken = twin.bytesPerToken(layers.value, kvHeads.value, headDim.value, Number(bits.value));
      const { rows, numSlots, capacity } = this.cache;
      const held = rows.reduce((sum, row) => sum + row.length, 0);
      const read = rows.length * twin.longest(this.cache);
      const places = twin.numPlaces(this.cache);
      const order = rows.length === 0 ? "" : ` Rows of the batch: ${rows.length === 1 ? "slot" : "slots"} ${rows.map((row) => row.slot).join(", ")}.`;
      return `${rows.length} of ${plural(numSlots, "slot")} taken.${order} ${plural(held, "token")} held; attention reads `
        + `${rows.length} × ${twin.longest(this.cache)} = ${plural(read, "place")}, ${number(read - held)} of them masked. `
        + `The arrays have ${numSlots} × ${capacity} places; at ${number(perToken)} bytes per token that is ${bytes(places * perToken)}, `
        + `${places === 0 ? 0 : Math.round((100 * held) / places)}% of it in use.`;
    }
  }

  // A line for each row of memory: what is held, what is masked, what is empty.
  function picture(width, cache) {
    const left = 128;
    const capacity = Math.max(cache.capacity, 1);
    const size = (width - left - 4) / capacity;
    const tall = 18;
    const step = 24;
    const top = 22;
    const height = top + cache.numSlots * step + 22;
    const longest = twin.longest(cache);
    const x = (j) => left + j * size;
    const node = TinyViz.drawing(width, height, `${cache.rows.length} of ${cache.numSlots} rows of memory are taken`,
      svg("text", { class: "faint", x: 0, y: 12 }, "row of memory"),
      svg("text", { class: "faint", x: left, y: 12 }, "tokens"));
    for (let i = 0; i < cache.numSlots; i += 1) {
      const y = top + i * step;
      const row = cache.rows[i];
      node.append(
        svg("text", { class: "faint", x: 0, y: y + 13 }, String(i)),
        svg("text", { class: row ? null : "faint", x: 16, y: y + 13 }, row ? `slot ${row.slot}, request ${row.name}` : "free"),
        svg("rect", { class: "room", x: left, y, width: capacity * size, height: tall }));
      if (!row) continue;
      const inset = size > 4 ? 1 : 0;
      for (let j = 0; j < row.length; j += 1) {
        const isNew = j === row.length - 1;
        node.append(svg("rect", { class: isNew ? "newest" : "seen", x: x(j), y: y + (isNew ? 0 : 2), width: Math.max(0.5, size - inset), height: isNew ? tall : tall - 4 }));
      }
      for (let j = row.length; j < longest; j += 1) {
        node.append(svg("line", { class: "masked", x1: x(j) + size * 0.15, y1: y + tall - 3, x2: x(j) + size * 0.85, y2: y + 3 }));
      }
    }
    const bottom = top + cache.numSlots * step;
    for (const tick of TinyViz.ticks(capacity, width / 90)) {
      node.append(svg("text", { class: "faint", x: x(tick), y: bottom + 12, "text-anchor": tick === 0 ? "start" : x(tick) > width - 20 ? "end" : "middle" }, String(tick)));
    }
    return node;
  }

  function legend() {
    const sample = (text, mark) => html("span", {}, svg("svg", { class: "viz-svg", width: 18, height: 16, "aria-hidden": "true" }, mark), text);
    return html("div", { class: "viz-legend" },
      sample("held", svg("rect", { class: "seen", x: 2, y: 2, width: 14, height: 12 })),
      sample("newest", svg("rect", { class: "newest", x: 5, y: 0, width: 8, height: 16 })),
      sample("read and masked", svg("line", { class: "masked", x1: 4, y1: 14, x2: 14, y2: 2 })),
      sample("room", svg("rect", { class: "room", x: 1, y: 1, width: 16, height: 14 })));
  }

  TinyViz.define("kv-cache", KvCache);
})();
