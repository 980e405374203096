// <scheduler-timeline>: two schedules of the same requests, one below the other.
(function () {
  "use strict";

  const { html, slider, choice, button, number, plural, table } = TinyViz;
  const twin = TinyTwins.timeline;
  const MOST_REQUESTS = 8;
  const MOST_DRAWN_STEPS = 60;
  const CHUNKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const LOOPS = [["phases", "chunks, whole prompts"], ["budget", "a budget, repaired"], ["engine", "chunks, one budget"]];
  const AXES = [["cost", "what a call costs"], ["steps", "steps"]];

  class SchedulerTimeline extends TinyViz.Figure {
    build() {
      this.requests = this.readRequests();
      const change = () => this.redraw();
      this.controls = {
        loop: choice({ name: "loop", label: "Schedules", options: LOOPS, value: this.word("loop", ["phases", "budget", "engine"], "phases"), onchange: () => this.changeLoop() }),
        axis: choice({ name: "axis", label: "Axis", options: AXES, value: this.word("axis", ["cost", "steps"], "cost"), onchange: change }),
        chunk: slider({ name: "chunk", label: "Chunk size, tokens", values: CHUNKS, value: this.number("chunk", 128, { min: 1, max: 4096 }), onchange: change }),
        batch: slider({ name: "batch", label: "Slots", min: 1, max: 8, value: this.number("batch", 4, { min: 1, max: 8 }), onchange: change }),
        callCost: slider({ name: "call-cost", label: "Cost of a call beside its tokens", min: 0, max: 128, step: 4, value: this.number("call-cost", 16, { max: 128 }), onchange: change }),
        budget: slider({ name: "budget", label: "Token budget of a step", min: 1, max: 512, value: this.number("budget", 160, { min: 1, max: 512 }), onchange: change }),
        threshold: slider({ name: "threshold", label: "Limit per prompt, 0 for none", min: 0, max: 256, value: this.number("threshold", 0, { max: 256 }), onchange: change }),
        partial: slider({ name: "partial", label: "Partial prefills, 0 for any", min: 0, max: 8, value: this.number("partial", 0, { max: 8 }), onchange: change }),
        decodes: slider({ name: "decodes", label: "Decoding at the start", min: 0, max: 64, value: this.number("decodes", 2, { max: 64 }), onchange: change }),
      };
      this.show = this.word("show", ["both", "first", "second"], "both");
      this.look = slider({ name: "look", label: "Look at", min: 0, max: 1, step: "any", value: 0, format: (value) => number(Math.round(value)), onchange: () => { this.isLooking = true; this.lookAt(this.look.value); } });
      this.found = html("p", { class: "viz-look", "aria-live": "off" });
      this.results = html("div", { class: "viz-scroll", tabindex: "0", role: "region", "aria-label": "Numbers of each request" });
      this.legend = html("div");
      this.editors = html("div");
      this.buildEditors();
      this.showControls();
      const requests = html("details", {}, html("summary", {}, "Change the requests"), this.editors);
      return [
        this.canvas, this.legend,
        ...this.offer(Object.values(this.controls), this.controls.loop.value === "phases" ? "chunk" : "budget", this.look.node, this.found, requests),
        this.summary, this.results,
      ];
    }

    readRequests() {
      const prompts = this.numbers("prompts", "12 30 640 20", 1, 4096);
      const outputs = this.numbers("outputs", "40", 1, 512);
      const arrivals = this.numbers("arrivals", "0", 0, 64);
      if (prompts.length > MOST_REQUESTS) throw new Error(`prompts must be at most ${MOST_REQUESTS}, not ${prompts.length}`);
      const of = (list, i) => list[Math.min(i, list.length - 1)];
      return prompts.map((prompt, i) => ({ prompt, output: of(outputs, i), arrival: of(arrivals, i) }));
    }

    buildEditors() {
      const isPhases = this.controls.loop.value !== "budget";
      const rows = this.requests.map((request, i) => {
        const edit = (key, label, min, max) => slider({
          name: `${key}-${i}`, label, min, max: Math.max(max, request[key]), value: request[key],
          onchange: () => { request[key] = sliders[key].value; this.redraw(); },
        });
        const sliders = {
          prompt: edit("prompt", `Request ${i}: prompt`, 1, 1024),
          output: edit("output", `Request ${i}: answer`, 1, 128),
          arrival: edit("arrival", `Request ${i}: arrives before step`, 0, 64),
        };
        const shown = isPhases ? Object.values(sliders) : [sliders.prompt];
        return html("div", { class: "viz-controls" }, shown.map((control) => control.node));
      });
      const add = button("Add a request", () => this.changeRequests((list) => list.push({ ...list[list.length - 1] })));
      const remove = button("Remove the last one", () => this.changeRequests((list) => list.pop()));
      add.disabled = this.requests.length >= MOST_REQUESTS;
      remove.disabled = this.requests.length <= 1;
      this.editors.replaceChildren(...rows, html("div", { class: "viz-buttons" }, add, remove));
    }

    changeRequests(edit) {
      const index = [...this.editors.querySelectorAll("button")].indexOf(document.activeElement);
      edit(this.requests);
      this.buildEditors();
      const buttons = this.editors.querySelectorAll("button");
      (buttons[index].disabled ? buttons[1 - index] : buttons[index]).focus();
      this.redraw();
    }

    changeLoop() {
      this.buildEditors();
      this.showControls();
      this.redraw();
    }

    showControls() {
      const loop = this.controls.loop.value;
      const isPhases = loop !== "budget";
      for (const name of ["axis", "batch", "callCost"]) this.controls[name].node.hidden = !isPhases;
      for (const name of ["threshold", "partial"]) this.controls[name].node.hidden = loop !== "engine";
      this.controls.budget.node.hidden = loop === "phases";
      this.controls.decodes.node.hidden = isPhases;
      this.look.node.hidden = !isPhases;
      this.found.hidden = !isPhases;
      this.legend.replaceChildren(TinyTimeline.legend(!isPhases));
    }

    draw(width) {
      if (this.controls.loop.value === "budget") this.drawBudget(width);
      else this.drawPhases(width);
    }

    drawPhases(width) {
      const { loop, chunk, batch, callCost, axis } = this.controls;
      const isSteps = axis.value === "steps";
      const settings = {
        prompts: this.requests.map((request) => request.prompt), outputs: this.requests.map((request) => request.output),
        arrivals: this.requests.map((request) => request.arrival), batch: batch.value, callCost: callCost.value,
      };
      const names = ["chunks", loop.value === "engine" ? "budget" : "whole"];
      const schedules = [
        scheduleOf(twin.play({ ...settings, chunk: chunk.value }), isSteps, `In chunks of ${number(chunk.value)}`),
        loop.value === "engine" ? this.engineSchedule(settings, isSteps) : wholeSchedule(settings, isSteps),
      ];
      this.picture(width, schedules, isSteps ? "steps" : timeUnit(callCost.value));
      this.lookable(schedules);
      this.summary.textContent = schedules.map((schedule) => sentence(schedule, isSteps)).join(" ");
      this.results.replaceChildren(table(
        `Time to first token (TTFT) and longest gap, ${isSteps ? "in steps" : "in token times"}`,
        ["no.", "prompt", "answer", "chunks", ["TTFT", names], ["gap", names]],
        this.requests.map((request, id) => [
          String(id), number(request.prompt), number(request.output),
          number(twin.numPrefillSteps(request.prompt, chunk.value, chunk.value)),
          ...["ttft", "gap"].flatMap((key) => schedules.map((schedule) => number(schedule.felt[id][key]))),
        ])));
    }

    // Steps of one budget, which is raised to a token for each slot where it is smaller.
    engineSchedule(settings, isSteps) {
      const { threshold, partial } = this.controls;
      const budget = Math.max(this.controls.budget.value, settings.batch);
      const run = twin.playBudget({ ...settings, budget, threshold: threshold.value, partial: partial.value });
      return scheduleOf(run, isSteps, `One budget of ${number(budget)}`);
    }

    picture(width, schedules, unit) {
      const shown = schedules.filter((_, i) => this.show === "both" || this.show === ["first", "second"][i]);
      this.drawn = TinyTimeline.draw(width, shown, { unit, label: "Schedules: " + shown.map((schedule) => schedule.title).join("; ") });
      this.canvas.replaceChildren(this.drawn.node);
    }

    lookable(schedules) {
      this.schedules = schedules;
      this.look.setRange(0, this.drawn.end);
      const point = (event) => {
        this.isLooking = true;
        this.lookAt(this.drawn.time(event.clientX - this.drawn.node.getBoundingClientRect().left));
      };
      this.drawn.node.addEventListener("pointermove", point);
      this.drawn.node.addEventListener("pointerdown", point);
      const longest = TinyTimeline.longestOf(schedules[1].felt);
      const start = longest ? (longest.from + longest.to) / 2 : 0;
      this.lookAt(this.isLooking ? Math.min(this.look.value, this.drawn.end) : start);
    }

    lookAt(time) {
      this.look.value = time;
      TinyTimeline.moveCursor(this.drawn, time);
      this.found.replaceChildren(...this.schedules.flatMap((schedule) => [
        html("span", {}, html("strong", {}, `${schedule.title}: `), TinyTimeline.whatRuns(schedule, time)), html("br")]));
    }

    drawBudget(width) {
      const prompts = this.requests.map((request) => request.prompt);
      const { budget, decodes, chunk } = this.controls;
      const output = this.requests[0].output;
      const active = Array(decodes.value).fill(output);
      const all = [
        twin.budgetSchedule(prompts, decodes.value, budget.value, chunk.value),
        twin.repairedSchedule(prompts, active, budget.value, chunk.value, output),
      ];
      const done = all.map((steps) => prompts.map((prompt, id) => doneIn(steps, id, prompt)));
      const lastDone = Math.max(0, ...done.flat().map((step) => step ?? 0));
      const hasStuck = done.flat().includes(null);
      const end = Math.min(MOST_DRAWN_STEPS, lastDone + (hasStuck ? 12 : 4));
      const titles = ["The exercise: a whole chunk or nothing", "Repaired: what is left of the budget is used"];
      this.picture(width, all.map((steps, i) => loadsOf(steps, titles[i], prompts, budget.value, end)), "steps");
      this.summary.textContent = budgetSentence(all, done, budget.value);
      this.results.replaceChildren(table(
        "Steps until a prompt is computed",
        ["request", "prompt", "alone", "exercise", "repaired"],
        prompts.map((prompt, id) => [
          String(id), number(prompt), number(twin.numPrefillSteps(prompt, chunk.value, budget.value)),
          ...done.map((steps) => (steps[id] === null ? "never" : number(steps[id])))])));
    }
  }

  function wholeSchedule(settings, isSteps) {
    return scheduleOf(twin.play({ ...settings, chunk: Math.max(...settings.prompts) }), isSteps, "Whole prompts");
  }

  // A run of the twin on one axis.
  function scheduleOf(run, isSteps, title) {
    const calls = isSteps ? run.calls.map((call) => ({ ...call, start: call.step, end: call.step + 1 })) : run.calls;
    const arrivals = run.arrivals.map((arrival) => (isSteps ? arrival.step : arrival.time));
    const felt = twin.measure(calls, arrivals, (call) => call.end);
    const end = calls.length > 0 ? calls[calls.length - 1].end : 0;
    return { title, calls, arrivals, felt, end, numSteps: run.numSteps };
  }

  const timeUnit = (callCost) => `time: 1 per token${callCost > 0 ? `, ${callCost} per call of the model` : ""}`;

  function sentence(schedule, isSteps) {
    const longest = TinyTimeline.longestOf(schedule.felt);
    const gap = longest === null ? "no gap" : `longest gap ${number(longest.gap)} (request ${longest.id})`;
    const cost = isSteps ? "" : `, ${number(schedule.end)} token times`;
    return `${schedule.title}: ${plural(schedule.numSteps, "step")}${cost}, ${gap}.`;
  }

  // Steps until a prompt is computed, null where it never is.
  function doneIn(steps, id, prompt) {
    let left = prompt;
    for (let i = 0; i < steps.length; i += 1) {
      for (const chunk of steps[i].chunks) if (chunk.id === id) left -= chunk.tokens;
      if (left === 0) return i + 1;
    }
    return null;
  }

  function loadsOf(steps, title, prompts, budget, end) {
    const drawn = steps.slice(0, end);
    const sum = (chunks) => chunks.reduce((total, chunk) => total + chunk.tokens, 0);
    return {
      title, budget, end, felt: null, arrivals: prompts.map(() => 0),
      calls: drawn.flatMap((step, i) => step.chunks.map((chunk) => (
        { step: i, phase: "prefill", start: i, end: i + 1, rows: [{ id: chunk.id, tokens: chunk.tokens }] }))),
      loads: drawn.map((step) => ({ prefill: sum(step.chunks), decode: step.decodes })),
    };
  }

  function budgetSentence(all, done, budget) {
    const words = done.map((steps, i) => {
      const stuck = steps.flatMap((step, id) => (step === null ? [id] : []));
      const name = ["The exercise", "Repaired"][i];
      if (stuck.length > 0) return `${name}: ${stuck.length === 1 ? "request" : "requests"} ${stuck.join(", ")} can never be computed in full.`;
      return `${name}: all prompts are computed after ${plural(Math.max(...steps), "step")}.`;
    });
    const drawn = all[0].filter((step) => step.chunks.length > 0);
    const unused = drawn.reduce((sum, step) => sum + budget - step.decodes - step.chunks.reduce((a, c) => a + c.tokens, 0), 0);
    return `${words.join(" ")} The exercise leaves ${plural(unused, "token")} of budget unused in the steps that compute chunks; its decodes never end.`;
  }

  TinyViz.define("scheduler-timeline", SchedulerTimeline);
})();
