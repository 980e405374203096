// <sampler>: what temperature, top-k, top-p and min-p leave of a recorded distribution.
(function () {
  "use strict";

  const { html, svg, slider, choice, number } = TinyViz;
  const twin = TinyTwins.sampler;
  const data = TinyData.sampler;
  const TOP_K = [0, 1, 2, 3, 5, 8, 10, 15, 20, 30, 50, 100, 500];
  const ROW = 19;

  class Sampler extends TinyViz.Figure {
    build() {
      const change = () => this.redraw();
      const part = { min: 0, max: 1, integer: false };
      const orOff = (value) => (value === 0 ? "off" : String(value));
      const texts = data.prompts.map((prompt, i) => [String(i), `${prompt.text} …`]);
      this.controls = {
        prompt: choice({ name: "prompt", label: "After the prompt", options: texts, value: String(this.number("prompt", 0, { max: texts.length - 1 })), onchange: change }),
        temperature: slider({ name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, value: this.number("temperature", 1, { min: 0, max: 2, integer: false }), format: (value) => (value === 0 ? "0, greedy" : String(value)), onchange: change }),
        topK: slider({ name: "top-k", label: "top-k", values: TOP_K, value: this.number("top-k", 0, { max: data.tokens.length }), format: orOff, onchange: change }),
        topP: slider({ name: "top-p", label: "top-p", min: 0, max: 1, step: 0.01, value: this.number("top-p", 0, part), format: (value) => (value === 1 ? "off" : orOff(value)), onchange: change }),
        minP: slider({ name: "min-p", label: "min-p", min: 0, max: 1, step: 0.01, value: this.number("min-p", 0, part), format: orOff, onchange: change }),
      };
      this.numBars = this.number("bars", 20, { min: 1, max: 60 });
      return [
        this.canvas, legend(), ...this.offer(Object.values(this.controls), "prompt"), this.summary,
        html("p", { class: "viz-source" }, `Recorded from ${data.model} by ${data.command}.`),
      ];
    }

    draw(width) {
      const { prompt, temperature, topK, topP, minP } = this.controls;
      const { logprobs } = data.prompts[Number(prompt.value)];
      const isGreedy = temperature.value === 0;
      const order = twin.order(logprobs);
      const after = twin.probabilities(logprobs, temperature.value, topP.value, topK.value, minP.value);
      const dropped = isGreedy ? logprobs.map((_, id) => (id === order[0] ? [] : ["greedy"])) : twin.cuts(logprobs, topP.value, topK.value, minP.value);
      const rows = order.slice(0, this.numBars).map((id) => ({ text: shown(data.tokens[id]), before: Math.exp(logprobs[id]), after: after[id], dropped: dropped[id] }));
      this.canvas.replaceChildren(picture(width, rows));
      const kept = order.filter((id) => dropped[id].length === 0);
      const share = kept.reduce((sum, id) => sum + Math.exp(logprobs[id]), 0);
      this.summary.textContent = `${number(kept.length)} of ${number(logprobs.length)} tokens can be drawn; the model gives them ${percent(share)} together. `
        + `The likeliest, ${shown(data.tokens[order[0]])}, goes from ${percent(Math.exp(logprobs[order[0]]))} to ${percent(after[order[0]])}.`;
    }
  }

  // Two decimals below 10%, and one from there on.
  function percent(part) {
    const value = 100 * part;
    if (value > 0 && value < 0.01) return "< 0.01%";
    return `${value.toFixed(value < 9.995 ? 2 : 1)}%`;
  }

  // A token in quotes, with its spaces and line breaks made visible.
  const shown = (token) => `“${token.replace(/ /g, "␣").replace(/\n/g, "↵")}”`;

  function picture(width, rows) {
    const [left, right] = width < 500 ? [92, 84] : [130, 190];
    const most = Math.max(...rows.map((row) => Math.max(row.before, row.after)));
    const length = (part) => (part / most) * (width - left - right - 12);
    const height = rows.length * ROW + 6;
    const node = TinyViz.drawing(width, height, `Probabilities of the ${rows.length} likeliest tokens, before and after`);
    rows.forEach((row, i) => {
      const y = i * ROW;
      const isKept = row.dropped.length === 0;
      const why = row.dropped.length > 0 && width >= 500 ? ` ${row.dropped.join(", ")}` : "";
      node.append(
        svg("text", { class: isKept ? null : "faint dropped", x: left - 8, y: y + 13, "text-anchor": "end" }, row.text),
        svg("rect", { class: "prefill", x: left, y: y + 3, width: length(row.after), height: ROW - 6 }),
        svg("rect", { class: "before", x: left, y: y + 1, width: Math.max(1, length(row.before)), height: ROW - 2 }),
        svg("text", { class: isKept ? null : "faint", x: width - right + 4, y: y + 13 }, isKept ? percents(row, width) : `${width < 500 ? "dropped" : "dropped by"}${why}`));
    });
    return node;
  }

  function percents(row, width) {
    const [before, after] = [percent(row.before), percent(row.after)];
    return width < 500 || before === after ? after : `${before} → ${after}`;
  }

  function legend() {
    const sample = (text, kind) => html("span", {}, svg("svg", { class: "viz-svg", width: 22, height: 14, "aria-hidden": "true" },
      svg("rect", { class: kind, x: 1, y: 1, width: 20, height: 12 })), text);
    return html("div", { class: "viz-legend" }, sample("as the model gives it", "before"), sample("as it is drawn", "prefill"));
  }

  TinyViz.define("sampler", Sampler);
})();
