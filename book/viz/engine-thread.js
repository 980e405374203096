// <engine-thread>: the event loop and the engine's thread, step by step, while clients hang up and steps fail.
(function () {
  "use strict";

  const { html, svg, slider, choice, plural, table } = TinyViz;
  const twin = TinyTwins.engineThread;
  const data = TinyData["engine-thread"];
  const FAULTS = [
    ["none", "nothing"], ["step", "one step, once"],
    ...data.requests.map((_, id) => [`request-${id}`, `request ${id}, at its second token`]),
  ];
  const GUTTER = 26;
  const ROW = 21;
  const TITLE = 20;
  const BETWEEN = 34;

  class EngineThread extends TinyViz.Figure {
    build() {
      const most = data.numSteps - 1;
      const change = () => this.redraw();
      this.controls = {
        fault: choice({ name: "fault", label: "What fails", options: FAULTS, value: this.word("fault", FAULTS.map(([key]) => key), "none"), onchange: change }),
        step: slider({ name: "step", label: "The step that fails", min: 0, max: most, value: this.number("step", 3, { max: most }), onchange: change }),
        gone: slider({
          name: "gone", label: `Client ${data.gone} hangs up`, min: 0, max: most, value: this.number("gone", 0, { max: most }),
          format: (value) => (value === 0 ? "never" : `after report ${value}`), onchange: change,
        }),
      };
      this.look = slider({ name: "look", label: "Look at step", min: 0, max: 0, value: 0, onchange: () => this.lookAt(this.look.value) });
      this.found = html("p", { class: "viz-look", "aria-live": "off" });
      this.results = html("div", { class: "viz-scroll", tabindex: "0", role: "region", "aria-label": "What became of each request" });
      this.showStep();
      return [
        this.canvas, legend(), ...this.offer(Object.values(this.controls), "fault", this.look.node, this.found), this.summary, this.results,
        html("p", { class: "viz-source" }, `Recorded from the reference by ${data.command}, on ${data.machine}.`),
      ];
    }

    showStep() {
      this.controls.step.node.hidden = this.controls.fault.value !== "step";
    }

    draw(width) {
      const { fault, step, gone } = this.controls;
      this.showStep();
      this.steps = twin.stepsOf(data, fault.value === "step" ? `step-${step.value}` : fault.value, gone.value);
      this.rows = twin.rowsOf(data, this.steps);
      this.drawn = picture(width, this.steps, this.rows);
      this.canvas.replaceChildren(this.drawn.node);
      const point = (event) => this.lookAt(this.drawn.stepAt(event.clientX - this.drawn.node.getBoundingClientRect().left));
      this.drawn.node.addEventListener("pointermove", point);
      this.drawn.node.addEventListener("pointerdown", point);
      this.look.setRange(0, this.steps.length - 1);
      this.lookAt(Math.min(this.look.value, this.steps.length - 1));
      this.describe();
    }

    describe() {
      const { numSteps, numFailed, numAgain, requests } = twin.summary(data, this.steps);
      this.summary.textContent = `${plural(numSteps, "step")}, ${numFailed} of them failed; ${plural(numAgain, "token")} computed again.`;
      this.results.replaceChildren(table("What became of each request", ["no.", "ended by", "tokens", "text"],
        requests.map(({ end, numTokens, text }, id) => [String(id), end, String(numTokens), text.trim()])));
    }

    lookAt(number) {
      this.look.value = number;
      this.drawn.cursor.setAttribute("x", this.drawn.x(number));
      this.found.textContent = sentence(number, this.steps[number], this.rows[number]);
    }
  }

  function sentence(number, step, rows) {
    const before = step.down.map((command) => `${command[0] === "+" ? "takes" : "drops"} request ${command.slice(1)}`);
    const taken = before.length > 0 ? `First the thread ${before.join(" and ")}. ` : "";
    const parts = rows.map(({ id, first, tokens, numAgain }) => {
      const what = tokens === 1 ? `token ${first}` : `tokens ${first} to ${first + tokens - 1}`;
      return `${what} of request ${id}${numAgain === tokens ? " again" : numAgain > 0 ? `, ${numAgain} of them again` : ""}`;
    });
    const computed = `Step ${number} computes ${parts.join(", ")}. `;
    if (step.ok === 0) {
      const fate = step.failed.length > 0 ? `request ${step.failed[0]} was on trial, so it is at fault` : "no one is on trial, so no one is blamed";
      return `${taken}${computed}It fails, and the engine is thrown away; ${fate}.`;
    }
    const words = step.up.map(([id, text, reason]) => `“${text}” for client ${id}${reason ? ", its last" : ""}`);
    return `${taken}${computed}${words.length > 0 ? `The report brings ${words.join(", ")}.` : "The report brings no text."} Blocks in use: ${step.used} of ${data.blocks}.`;
  }

  function picture(width, steps, rows) {
    const size = (width - GUTTER - 4) / steps.length;
    const x = (number) => GUTTER + number * size;
    const lane = TITLE + data.requests.length * ROW;
    const lower = lane + BETWEEN;
    const height = lower + lane + 22;
    const middle = (top, id) => top + TITLE + (id + 0.5) * ROW;
    const cursor = svg("rect", { class: "cursor", x: x(0), width: size, y: 0, height: height - 20 });
    const node = TinyViz.drawing(width, height, `Event loop and engine's thread in ${steps.length} steps`, cursor);
    for (const [top, title] of [[0, "Event loop: clients"], [lower, "Engine's thread: steps"]]) {
      node.append(svg("text", { class: "title", x: 0, y: top + 13 }, title));
      data.requests.forEach((_, id) => node.append(
        svg("text", { class: "faint", x: 4, y: middle(top, id) + 4 }, String(id)),
        svg("line", { class: "grid", x1: GUTTER, x2: width - 4, y1: middle(top, id), y2: middle(top, id) })));
    }
    steps.forEach((step, number) => {
      const [left, right] = [x(number), x(number + 1)];
      const up = right - size * 0.18;
      node.append(arrow(up, lower - 3, lane + 4, step.ok === 0 ? "missed" : "bracket"));
      if (step.down.length > 0) node.append(arrow(left + size * 0.12, lane + 4, lower - 3, "link"));
      for (const command of step.down) node.append(commandMark(command, left, middle(0, Number(command.slice(1)))));
      for (const row of rows[number]) node.append(...workMarks(row, left, size, middle(lower, row.id), step.ok === 1));
      if (step.ok === 0) node.append(svg("path", { class: "cross", d: `M${left + 2} ${lower + TITLE}L${right - 2} ${lower + lane - 2}M${left + 2} ${lower + lane - 2}L${right - 2} ${lower + TITLE}` }));
      for (const [id, , reason] of step.up) node.append(...textMarks(up, middle(0, id), reason));
      for (const id of step.failed) node.append(cross(up, middle(0, id), 5));
      if (size > 16 || number % 2 === 0) node.append(svg("text", { class: "faint", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, String(number)));
    });
    const stepAt = (pixel) => Math.min(steps.length - 1, Math.max(0, Math.floor((pixel - GUTTER) / size)));
    return { node, cursor, x, stepAt };
  }

  function arrow(x, from, to, name) {
    const tip = to < from ? 5 : -5;
    return svg("path", { class: name, fill: "none", d: `M${x} ${from}V${to}M${x - 3} ${to + tip}L${x} ${to}L${x + 3} ${to + tip}` });
  }

  // A request that comes, or a client that hangs up.
  function commandMark(command, left, y) {
    if (command[0] === "-") return cross(left + 3, y, 5);
    return svg("path", { class: "hit", d: `M${left - 1} ${y - 6}V${y + 6}L${left + 8} ${y}Z` });
  }

  const cross = (x, y, size) => svg("path", { class: "cross", d: `M${x - size} ${y - size}L${x + size} ${y + size}M${x - size} ${y + size}L${x + size} ${y - size}` });

  // What a step computes of a request: solid what is new, framed what is computed again, a dot where a token is sampled.
  function workMarks({ tokens, numAgain, isFinal }, left, size, y, isOk) {
    const room = size * 0.78;
    const unit = Math.max(2.5, room / 8);
    const marks = [];
    const box = (name, from, count) => svg("rect", { class: name, x: left + 2 + from * unit, y: y - 6, width: Math.max(2, count * unit - 1), height: 12 });
    if (numAgain > 0) marks.push(box("before", 0, numAgain));
    if (tokens > numAgain) marks.push(box("prefill", numAgain, tokens - numAgain));
    if (isFinal && isOk) marks.push(svg("circle", { class: "decode", cx: left + size * 0.9, cy: y, r: Math.min(3.5, size * 0.09 + 1.5) }));
    return marks;
  }

  // A piece of text that arrives; a bar behind the last one.
  function textMarks(x, y, reason) {
    const marks = [svg("circle", { class: "decode", cx: x, cy: y, r: 3.5 })];
    if (reason) marks.push(svg("path", { class: "bracket", d: `M${x + 6} ${y - 6}V${y + 6}` }));
    return marks;
  }

  function legend() {
    const sample = (text, ...marks) => html("span", {}, svg("svg", { class: "viz-svg", width: 20, height: 14, "aria-hidden": "true" }, marks), text);
    return html("div", { class: "viz-legend" },
      sample("a request comes", svg("path", { class: "hit", d: "M4 1V13L13 7Z" })),
      sample("computed", svg("rect", { class: "prefill", x: 2, y: 1, width: 14, height: 12 })),
      sample("computed again", svg("rect", { class: "before", x: 2, y: 1, width: 14, height: 12 })),
      sample("a token, and its text", svg("circle", { class: "decode", cx: 10, cy: 7, r: 3.5 })),
      sample("hung up, or an error", cross(10, 7, 5)));
  }

  TinyViz.define("engine-thread", EngineThread);
})();
