// <viz-roofline>: where a prefill chunk and a decode lie under the limits of a machine.
(function () {
  "use strict";

  const { html, svg, slider, choice, numberField, number, bytes, table } = TinyViz;
  const twin = TinyTwins.roofline;
  const data = TinyData.roofline;
  const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256];
  const CHUNKS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
  const CONTEXTS = [0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768];
  const BITS = [["32", "32 bits"], ["16", "16 bits"], ["8", "8 bits, packed"], ["4", "4 bits, packed"]];

  class Roofline extends TinyViz.Figure {
    build() {
      const change = () => this.redraw();
      const models = Object.keys(data.models);
      const positive = { min: 1e-9, integer: false };
      this.controls = {
        model: choice({ name: "model", label: "Model", options: models.map((name) => [name, name]), value: this.word("model", models, models[0]), onchange: change }),
        bits: choice({ name: "bits", label: "A weight is kept in", options: BITS, value: this.word("bits", BITS.map(([bits]) => bits), "32"), onchange: change }),
        batch: slider({ name: "batch", label: "Requests that decode", values: BATCHES, value: this.number("batch", 4, { min: 1, max: 4096 }), onchange: change }),
        chunk: slider({ name: "chunk", label: "Tokens of a prefill chunk", values: CHUNKS, value: this.number("chunk", 64, { min: 1, max: 65536 }), onchange: change }),
        context: slider({ name: "context", label: "Tokens cached before", values: CONTEXTS, value: this.number("context", 256, { max: 1000000 }), format: number, onchange: change }),
        bandwidth: numberField({ name: "bandwidth", label: "Memory bandwidth", unit: "GB/s", value: this.number("bandwidth", data.bandwidth, positive), onchange: change }),
        peak: numberField({ name: "peak", label: "Peak", unit: "GFLOP/s", value: this.number("peak", data.peak, positive), onchange: change }),
      };
      this.results = html("div", { class: "viz-scroll", tabindex: "0", role: "region", "aria-label": "Numbers of both steps" });
      const source = html("p", { class: "viz-source" }, `Bandwidth and peak were recorded by ${data.command} on ${data.machine}. `
        + "For your own machine, measure the bandwidth with pdm run bench bandwidth, and take the peak from its maker or time a large matrix product.");
      return [this.canvas, legend(), ...this.offer(Object.values(this.controls), "batch", source), this.summary, this.results];
    }

    draw(width) {
      const { model, bits, batch, chunk, context, bandwidth, peak } = this.controls;
      if (bandwidth.value === null || peak.value === null) {
        this.summary.textContent = "Bandwidth and peak must be numbers above 0.";
        return;
      }
      const shape = data.models[model.value];
      const limits = [bandwidth.value * 1e9, peak.value * 1e9];
      const decode = (n) => twin.decode(shape, Number(bits.value), n, context.value);
      const prefill = (n) => twin.prefill(shape, Number(bits.value), n, context.value);
      const placed = (step) => ({ ...step, ...twin.place(step, ...limits) });
      const [decoding, prefilling] = [placed(decode(batch.value)), placed(prefill(chunk.value))];
      this.canvas.replaceChildren(picture(width, limits, {
        decodes: BATCHES.map(decode).map(placed), prefills: CHUNKS.map(prefill).map(placed), decoding, prefilling,
        names: [`decode of ${batch.value}`, `chunk of ${chunk.value}`],
      }));
      this.summary.textContent = `Below ${number(limits[1] / limits[0])} operations per byte, memory decides. `
        + `${sentence(`A decode of ${batch.value}`, decoding)} ${sentence(`A chunk of ${chunk.value}`, prefilling)}`;
      this.results.replaceChildren(table("At best, on this machine", ["", "operations", "bytes read", "op / byte", "time", "tokens / s"], [
        row("decode", decoding), row("prefill", prefilling)]));
    }
  }

  function sentence(name, step) {
    return `${name} does ${number(step.intensity)}, so ${step.isMemoryBound ? "memory" : "the processor"} decides: at most ${number(whole(step.tokensPerSecond))} tokens per second.`;
  }

  const row = (name, step) => [name, short(step.operations), bytes(step.bytes), number(step.intensity), time(step.seconds), number(whole(step.tokensPerSecond))];

  // 39,400,000 -> "39.4 M"
  function short(value) {
    const units = ["", "k", "M", "G", "T", "P"];
    let i = 0;
    while (value >= 1000 && i < units.length - 1) { value /= 1000; i += 1; }
    return `${number(value)} ${units[i]}`;
  }

  const whole = (value) => (value >= 100 ? Math.round(value) : value);

  const time = (seconds) => (seconds >= 1 ? `${number(seconds)} s` : seconds >= 1e-3 ? `${number(seconds * 1e3)} ms` : `${number(seconds * 1e6)} µs`);

  // Both axes are logarithms; the roof is bandwidth times intensity, and then the peak.
  function picture(width, [bandwidth, peak], { decodes, prefills, decoding, prefilling, names }) {
    const height = Math.min(320, Math.max(230, width * 0.48));
    const [left, right, top, bottom] = [52, 14, 26, 40];
    const ridge = peak / bandwidth;
    const all = [...decodes, ...prefills, decoding, prefilling];
    const xs = decades([...all.map((step) => step.intensity), ridge / 2, ridge * 4]);
    const ys = decades([...all.map((step) => step.rate / 1e9), peak / 1e9]);
    const x = (intensity) => left + ((Math.log10(intensity) - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
    const y = (rate) => height - bottom - ((Math.log10(rate / 1e9) - ys[0]) / (ys[1] - ys[0])) * (height - top - bottom);
    const node = TinyViz.drawing(width, height, "Operations per second over operations per byte: the roof of a machine, a decode and a prefill chunk under it");
    for (let power = xs[0]; power <= xs[1]; power += 1) {
      const at = x(10 ** power);
      node.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - bottom }),
        svg("text", { class: "faint", x: at, y: height - bottom + 16, "text-anchor": power === xs[1] ? "end" : "middle" }, number(10 ** power)));
    }
    for (let power = ys[0]; power <= ys[1]; power += 1) {
      const at = y(10 ** (power + 9));
      node.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }),
        svg("text", { class: "faint", x: left - 6, y: at + 4, "text-anchor": "end" }, number(10 ** power)));
    }
    const start = Math.max(10 ** xs[0], (10 ** (ys[0] + 9)) / bandwidth);
    node.append(
      svg("text", { class: "faint", x: 0, y: 12 }, "GFLOP/s"),
      svg("text", { class: "faint", x: width - right, y: height - 6, "text-anchor": "end" }, "operations per byte"),
      svg("path", { class: "roof", d: `M${x(start)} ${y(start * bandwidth)}L${x(ridge)} ${y(peak)}H${x(10 ** xs[1])}` }),
      ...decodes.map((step) => svg("circle", { class: "trail decode", cx: x(step.intensity), cy: y(step.rate), r: 2 })),
      ...prefills.map((step) => svg("rect", { class: "trail prefill", x: x(step.intensity) - 2, y: y(step.rate) - 2, width: 4, height: 4 })),
      svg("circle", { class: "decode", cx: x(decoding.intensity), cy: y(decoding.rate), r: 6 }),
      svg("rect", { class: "prefill", x: x(prefilling.intensity) - 6, y: y(prefilling.rate) - 6, width: 12, height: 12 }),
      ...labels([[x(decoding.intensity), y(decoding.rate), names[0]], [x(prefilling.intensity), y(prefilling.rate), names[1]]], width, height - bottom));
    return node;
  }

  // Names below and to the right of their points, which lie on the roof, and above the axis; the second gives way to the first.
  function labels(points, width, axis) {
    const placed = [];
    return points.map(([x, y, text]) => {
      const isLate = x > width - 130;
      let at = Math.min(y + 22, axis - 5);
      for (const other of placed) if (Math.abs(other.x - x) < 110 && Math.abs(other.at - at) < 14) at = other.at + 15;
      placed.push({ x, at });
      return svg("text", { x: isLate ? x + 6 : x + (at < y + 22 ? 11 : 2), y: at, "text-anchor": isLate ? "end" : "start" }, text);
    });
  }

  // The powers of ten that enclose some numbers.
  function decades(values) {
    const logs = values.map(Math.log10);
    const least = Math.floor(Math.min(...logs) + 1e-9);
    return [least, Math.max(least + 1, Math.ceil(Math.max(...logs) - 1e-9))];
  }

  function legend() {
    const sample = (text, ...marks) => html("span", {}, svg("svg", { class: "viz-svg", width: 24, height: 14, "aria-hidden": "true" }, ...marks), text);
    return html("div", { class: "viz-legend" },
      sample("decode, small: other batches", svg("circle", { class: "decode", cx: 7, cy: 7, r: 6 }), svg("circle", { class: "trail decode", cx: 19, cy: 7, r: 2 })),
      sample("prefill, small: other chunks", svg("rect", { class: "prefill", x: 1, y: 1, width: 12, height: 12 }), svg("rect", { class: "trail prefill", x: 17, y: 5, width: 4, height: 4 })),
      sample("the machine's limit", svg("path", { class: "roof", d: "M1 13L12 2H23" })));
  }

  TinyViz.define("roofline", Roofline);
})();
