// Draws one schedule: a row for each request, chunks as blocks, decoded tokens as dots, the longest gap as a bracket.
// A schedule is {title, calls: [{step, phase, start, end, rows: [{id, tokens, first?}]}], arrivals, felt, end, loads?, budget?, names?,
// poolEvents?: [{kind, step, time, id, tokens}], blocks?: [{used, cached, free}] by step}, with all times in one unit.
var TinyTimeline = (function () {
  "use strict";

  const { svg, number } = TinyViz;
  const GUTTER = 34;
  const TITLE = 24;
  const NO_TITLE = 4;
  const AXIS = 34;
  const LOAD = 44;

  const rowHeight = (numRows) => (numRows <= 10 ? 22 : numRows <= 30 ? 14 : 8);

  const titleHeight = (schedule) => (schedule.title ? TITLE : NO_TITLE);

  function heightOf(schedule) {
    return titleHeight(schedule) + schedule.arrivals.length * rowHeight(schedule.arrivals.length) + (schedule.loads ? LOAD + 14 : 0);
  }

  // All schedules below each other on one scale; returns the SVG and its scale.
  function draw(width, schedules, { unit, format = number, label }) {
    const end = Math.max(...schedules.map((schedule) => schedule.end), 1e-9);
    const scale = (time) => GUTTER + (time / end) * (width - GUTTER - 6);
    const heights = schedules.map((schedule) => heightOf(schedule) + 8);
    const top = heights.reduce((sum, height) => sum + height, 0);
    const height = top + AXIS;
    const cursor = svg("rect", { class: "cursor", y: 0, height: top, x: 0, width: 0 });
    const node = TinyViz.drawing(width, height, label, cursor);
    let y = 0;
    schedules.forEach((schedule, i) => {
      node.append(panel(schedule, scale, width, y, format));
      y += heights[i];
    });
    node.append(axis(scale, end, width, top, unit, format));
    const time = (pixel) => Math.min(end, Math.max(0, ((pixel - GUTTER) / (width - GUTTER - 6)) * end));
    return { node, cursor, scale, time, end };
  }

  function panel(schedule, scale, width, top, format) {
    const height = rowHeight(schedule.arrivals.length);
    const middle = (id) => top + titleHeight(schedule) + (id + 0.5) * height;
    const longest = longestOf(schedule.felt);
    const note = longest && schedule.title ? `longest gap ${format(longest.gap)}` : null;
    const group = svg("g", {},
      svg("text", { class: "title", x: 0, y: top + 14 }, schedule.title),
      svg("text", { class: "gap-label", x: width - 6, y: top + 14, "text-anchor": "end" }, note));
    const roomOfCall = (scale(schedule.end) - scale(0)) / Math.max(1, schedule.calls.length);
    const radius = Math.min(height * 0.14, Math.max(1, roomOfCall * 0.4));
    const isTight = height < 12;
    schedule.arrivals.forEach((arrival, id) => {
      if (!isTight || id % 5 === 0) group.append(svg("text", { class: "faint", x: 0, y: middle(id) + 4 }, schedule.names ? schedule.names[id] : String(id)));
      TinyViz.add(group, waiting(schedule, id, arrival, scale, middle(id)));
    });
    for (const call of schedule.calls) for (const row of call.rows) group.append(mark(call, row, scale, middle(row.id), height, radius));
    for (const event of schedule.poolEvents || []) group.append(poolMark(event, scale, middle(event.id), height));
    if (longest) group.append(bracket(longest, scale, middle(longest.id) + height * 0.34));
    if (schedule.loads) group.append(loads(schedule, scale, middle(schedule.arrivals.length - 0.5) + 8));
    return group;
  }

  // The dotted line from a request's arrival to the first call that computes something of it.
  function waiting(schedule, id, arrival, scale, y) {
    const first = schedule.calls.find((call) => call.rows.some((row) => row.id === id));
    const end = first ? first.start : schedule.end;
    return end > arrival ? svg("line", { class: "wait", x1: scale(arrival), x2: scale(end), y1: y, y2: y }) : null;
  }

  function mark(call, row, scale, y, height, radius) {
    const [start, end] = [scale(call.start), scale(call.end)];
    const size = end - start;
    if (call.phase === "prefill") {
      const thickness = height * 0.56;
      const gap = size > 3 ? 1 : 0;
      return svg("rect", { class: "prefill", x: start, y: y - thickness / 2, width: Math.max(1, size - gap), height: thickness },
        svg("title", {}, `request ${row.id}, step ${call.step}: ${row.tokens} ${row.isBeyondPrompt ? "tokens" : "prompt tokens"}`));
    }
    return svg("circle", { class: "decode", cx: end - radius, cy: y, r: radius });
  }

  // A prefix that was found in blocks: a wedge before the first chunk. A preemption: a cross.
  function poolMark({ kind, step, time, id, tokens }, scale, y, height) {
    const [x, size] = [scale(time), height * 0.28];
    const path = kind === "hit"
      ? `M${x} ${y - size}V${y + size}L${x - size * 1.3} ${y}Z`
      : `M${x - size} ${y - size}L${x + size} ${y + size}M${x - size} ${y + size}L${x + size} ${y - size}`;
    const words = kind === "hit" ? `${tokens} tokens found in blocks` : `preempted, ${tokens} tokens to compute again`;
    return svg("path", { class: kind, d: path }, svg("title", {}, `request ${id}, step ${step}: ${words}`));
  }

  // The request that waits longest between two of its tokens; the first of several.
  function longestOf(felt) {
    let found = null;
    (felt || []).forEach((one, id) => {
      if (one.gap !== null && (found === null || one.gap > found.gap)) found = { id, ...one };
    });
    return found;
  }

  function bracket(longest, scale, y) {
    const [start, end] = [scale(longest.from), scale(longest.to)];
    const path = `M${start} ${y - 4}V${y}H${end}V${y - 4}`;
    return svg("path", { class: "gap", d: path });
  }

  // What each step computes, stacked up to the budget: decodes below, chunks above, empty what is not used.
  function loads(schedule, scale, top) {
    const size = scale(1) - scale(0);
    const unit = LOAD / schedule.budget;
    const bottom = top + LOAD;
    const group = svg("g", {},
      svg("line", { class: "rule", x1: scale(0), x2: scale(schedule.end), y1: top, y2: top }),
      svg("line", { class: "rule", x1: scale(0), x2: scale(schedule.end), y1: bottom, y2: bottom }),
      svg("text", { class: "faint", x: 0, y: top + 4 }, String(schedule.budget)));
    schedule.loads.forEach(({ prefill, decode }, step) => {
      const box = (name, tokens, y) => svg("rect", { class: name, x: scale(step), width: Math.max(1, size - 1), y, height: tokens * unit });
      group.append(box("prefill", prefill, bottom - (decode + prefill) * unit), box("decode", decode, bottom - decode * unit));
    });
    return group;
  }

  function axis(scale, end, width, top, unit, format) {
    const group = svg("g", {}, svg("line", { class: "rule", x1: scale(0), x2: scale(end), y1: top, y2: top }));
    const found = TinyViz.ticks(end, width / 90);
    for (const tick of found) {
      group.append(svg("line", { class: "rule", x1: scale(tick), x2: scale(tick), y1: top, y2: top + 4 }),
        svg("text", { class: "faint", x: scale(tick), y: top + 16, "text-anchor": tick === 0 ? "start" : scale(tick) > width - 24 ? "end" : "middle" }, format(tick)));
    }
    group.append(svg("text", { class: "faint", x: width - 6, y: top + 30, "text-anchor": "end" }, unit));
    return group;
  }

  // What the marks mean.
  function legend(isBudget = false, hasPool = false) {
    const sample = (text, marks) => TinyViz.html("span", {}, svg("svg", { class: "viz-svg", width: 22, height: 12, "aria-hidden": "true" }, marks), text);
    const entries = [
      sample("a chunk of a prompt", svg("rect", { class: "prefill", x: 0, y: 0, width: 21, height: 12 })),
      isBudget
        ? sample("decodes, below the chunks", svg("rect", { class: "decode", x: 0, y: 8, width: 21, height: 4 }))
        : sample("a decoded token", svg("circle", { class: "decode", cx: 11, cy: 6, r: 3 })),
      sample("waits", svg("line", { class: "wait", x1: 0, x2: 22, y1: 6, y2: 6 })),
    ];
    if (!isBudget) entries.push(sample("longest gap between two tokens", svg("path", { class: "gap", d: "M1 4V9H21V4" })));
    if (hasPool) {
      entries.push(sample("tokens found in blocks", svg("path", { class: "hit", d: "M14 1V11L7 6Z" })),
        sample("preempted", svg("path", { class: "preemption", d: "M7 2L15 10M7 10L15 2" })));
    }
    return TinyViz.html("div", { class: "viz-legend" }, entries);
  }

  // The line at the time that one looks at.
  function moveCursor(drawn, time) {
    drawn.cursor.setAttribute("x", drawn.scale(time) - 1);
    drawn.cursor.setAttribute("width", 2);
  }

  // What is computed at a time, in words.
  function whatRuns(schedule, time) {
    const running = schedule.calls.filter((call) => call.start <= time && time < call.end);
    if (running.length === 0) return time >= schedule.end ? "all is done." : "nothing runs.";
    const { step } = running[0];
    const words = running.map((call) => {
      const ids = call.rows.map((row) => row.id);
      if (call.phase === "decode") return `decodes a token of ${ids.length === 1 ? "request" : "requests"} ${ids.join(", ")}`;
      const [row] = call.rows;
      const before = row.first ?? computedBefore(schedule, call, row.id);
      return `computes ${row.isBeyondPrompt ? "tokens" : "prompt tokens"} ${number(before)} to ${number(before + row.tokens - 1)} of request ${row.id}`;
    });
    const events = (schedule.poolEvents || []).filter((event) => event.step === step);
    words.unshift(...events.map(({ kind, id, tokens }) => (kind === "hit"
      ? `finds ${number(tokens)} tokens of request ${id} in blocks` : `preempts request ${id}`)));
    const counts = (schedule.blocks || [])[step];
    const pool = counts ? ` Blocks: ${number(counts.used)} used, ${number(counts.cached)} cached, ${number(counts.free)} free.` : "";
    return `step ${step} ${words.join(" and ")}.${pool}`;
  }

  function computedBefore(schedule, until, id) {
    let sum = 0;
    for (const call of schedule.calls) {
      if (call === until) break;
      if (call.phase === "prefill") for (const row of call.rows) if (row.id === id) sum += row.tokens;
    }
    return sum;
  }

  return { draw, legend, longestOf, moveCursor, whatRuns };
})();
