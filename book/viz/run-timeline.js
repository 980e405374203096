// <run-timeline>: a recorded run, from a file, from a file dropped on the page, or from TinyRun where the page holds one.
(function () {
  "use strict";

  const { html, slider, number, plural, table } = TinyViz;

  class RunTimeline extends TinyViz.Figure {
    build() {
      const input = html("input", { type: "file", id: "run-file", accept: ".json,application/json", onchange: () => this.open(input.files[0]) });
      this.complaint = html("p", { class: "viz-error", role: "alert", hidden: true });
      this.heading = html("p", { class: "viz-heading" });
      this.zoom = slider({ name: "zoom", label: "Width", values: [1, 2, 4, 8, 16, 32], value: 1, format: (value) => `× ${value}`, onchange: () => this.redraw() });
      this.look = slider({ name: "look", label: "Look at", min: 0, max: 1, step: "any", value: 0, format: ms, onchange: () => this.lookAt(this.look.value) });
      this.found = html("p", { class: "viz-look" });
      this.scroll = html("div", { class: "viz-scroll", tabindex: "0", role: "region", "aria-label": "The run over time" });
      this.results = html("div", { class: "viz-scroll", tabindex: "0", role: "region", "aria-label": "Numbers of each request" });
      this.answers = html("div");
      this.legend = html("div");
      this.body = html("div", { hidden: true },
        this.heading, this.scroll, this.legend,
        html("div", { class: "viz-controls" }, this.zoom.node, this.look.node), this.found, this.summary, this.results,
        html("details", {}, html("summary", {}, "Answers"), this.answers));
      document.addEventListener("dragover", (event) => event.preventDefault());
      document.addEventListener("drop", (event) => { event.preventDefault(); this.open(event.dataTransfer.files[0]); });
      if (typeof TinyRun !== "undefined") this.show(TinyRun);
      return [
        html("p", {}, html("label", { for: "run-file" }, "A file that "), html("code", {}, "pdm run trace"), " wrote, chosen or dropped here: ", input),
        this.complaint, this.canvas, this.body,
      ];
    }

    async open(file) {
      if (!file) return;
      try {
        this.show(TinyRunReader.parse(await file.text()));
        this.redraw();
      } catch (error) {
        this.complain(error.message);
      }
    }

    complain(sentence) {
      this.complaint.textContent = sentence;
      this.complaint.hidden = false;
      this.body.hidden = true;
    }

    show(run) {
      let schedule;
      try {
        schedule = TinyRunReader.schedule(run);
      } catch (error) {
        this.complain(error.message);
        return;
      }
      this.complaint.hidden = true;
      this.body.hidden = false;
      this.run = run;
      this.schedule = { title: "", ...schedule };
      this.legend.replaceChildren(TinyTimeline.legend(false, schedule.blocks.length > 0));
      this.look.setRange(0, schedule.end);
      const longest = TinyTimeline.longestOf(schedule.felt);
      this.look.value = longest ? (longest.from + longest.to) / 2 : 0;
      this.describe(longest);
    }

    describe(longest) {
      const { settings = {}, machine = {}, package: served } = this.run;
      const chunk = settings.budget ? `a budget of ${settings.budget}` : settings.prefill_step ? `in chunks of ${settings.prefill_step}` : "whole prompts";
      const parts = [served, settings.model, chunk, settings.batch_size && `${plural(settings.batch_size, "slot")}`,
        settings.blocks && `${plural(settings.blocks, "block")} of ${settings.block_size}`,
        machine.processor, machine.cores && plural(machine.cores, "core"), machine.mlx && `mlx ${machine.mlx}`];
      this.heading.textContent = parts.filter(Boolean).join(" · ");
      const { requests } = this.run;
      const sum = (key) => requests.reduce((total, request) => total + request[key], 0);
      const gap = longest ? `the longest gap between two tokens is ${ms(longest.gap)}, of request ${longest.id}` : "no request got two tokens";
      this.summary.textContent = `${plural(requests.length, "request")}, ${plural(sum("prompt_tokens"), "prompt token")} and `
        + `${plural(sum("output_tokens"), "output token")} in ${plural(this.schedule.numSteps, "step")} and ${ms(this.schedule.end)}; ${gap}.${this.poolWords()}`;
      this.results.replaceChildren(table("Of each request", ["request", "prompt", "answer", "chunks", "TTFT", "longest gap", "ended by"],
        requests.map((request, id) => [
          String(id), number(request.prompt_tokens), number(request.output_tokens),
          number(this.schedule.calls.filter((call) => call.phase === "prefill" && call.rows.some((row) => row.id === id)).length),
          ms(this.schedule.felt[id].ttft), ms(this.schedule.felt[id].gap), String(request.finish_reason || "–")])));
      this.answers.replaceChildren(...requests.map((request, id) => html("p", {}, html("strong", {}, `${id}: `), String(request.text || ""))));
    }

    poolWords() {
      const { poolEvents, blocks } = this.schedule;
      if (blocks.length === 0) return "";
      const hits = poolEvents.filter(({ kind }) => kind === "hit");
      const found = hits.reduce((total, { tokens }) => total + tokens, 0);
      const most = Math.max(...blocks.map(({ used }) => used));
      return ` ${plural(found, "token")} found in blocks, ${plural(poolEvents.length - hits.length, "preemption")}, at most ${plural(most, "block")} in use.`;
    }

    draw(width) {
      if (!this.schedule) return;
      this.drawn = TinyTimeline.draw(width * this.zoom.value, [this.schedule], { unit: "ms", format: (value) => number(value), label: "A recorded run" });
      this.drawn.node.setAttribute("class", "viz-svg viz-wide");
      this.scroll.replaceChildren(this.drawn.node);
      this.drawn.node.addEventListener("pointermove", (event) => this.lookAt(this.drawn.time(event.clientX - this.drawn.node.getBoundingClientRect().left)));
      this.lookAt(this.look.value);
    }

    lookAt(time) {
      this.look.value = time;
      TinyTimeline.moveCursor(this.drawn, time);
      const found = TinyTimeline.whatRuns(this.schedule, time);
      this.found.textContent = found[0].toUpperCase() + found.slice(1);
    }
  }

  const ms = (value) => (value === null ? "–" : `${number(value >= 100 ? Math.round(value) : value)} ms`);

  TinyViz.define("run-timeline", RunTimeline);
})();
