// What the figures share: elements, controls with labels, and the base class that reads attributes.
var TinyViz = (function () {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  let count = 0;

  const uniqueId = (stem) => `viz-${stem}-${(count += 1)}`;

  // A node with attributes and children; an attribute that is null or false is left out.
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  const add = (node, ...children) => fill(node, {}, children);

  // The root of a picture; it shrinks where there is no room for its width.
  const drawing = (width, height, label, ...children) => svg("svg", {
    class: "viz-svg", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label,
  }, ...children);

  // A slider over `values`, or from `min` to `max`; `value` is read and set as a number.
  function slider({ name, label, min, max, step = 1, values = null, value, format = String, onchange }) {
    const id = uniqueId(name);
    const input = html("input", { type: "range", id, name, step: values ? 1 : step });
    const output = html("output", { for: id });
    const control = {
      node: html("div", { class: "viz-control" }, html("label", { for: id }, label), output, input),
      input,
      get value() { return values ? values[Number(input.value)] : Number(input.value); },
      set value(wanted) {
        if (values && !values.includes(wanted)) control.setValues([...values, wanted].sort((a, b) => a - b));
        input.value = values ? values.indexOf(wanted) : wanted;
        show();
      },
      setRange(least, most) {
        input.min = least;
        input.max = Math.max(least, most);
        show();
      },
      setValues(wanted) {
        values = wanted;
        control.setRange(0, values.length - 1);
      },
    };
    function show() {
      output.textContent = format(control.value);
      input.setAttribute("aria-valuetext", output.textContent);
      input.disabled = input.min === input.max;
    }
    input.addEventListener("input", () => { show(); onchange(); });
    if (values) control.setValues(values);
    else control.setRange(min, max);
    control.value = value;
    return control;
  }

  // One of several words, as a drop-down list; options are [value, text] pairs.
  function choice({ name, label, options, value, onchange }) {
    const id = uniqueId(name);
    const select = html("select", { id, name, onchange },
      options.map(([key, text]) => html("option", { value: key }, text)));
    const node = html("div", { class: "viz-control" }, html("label", { for: id }, label), select);
    select.value = value;
    return {
      node, input: select,
      get value() { return select.value; },
      set value(wanted) { select.value = wanted; },
    };
  }

  // A number that is typed; `value` is null while what stands there is no number within the bounds.
  function numberField({ name, label, unit, min = 0, value, onchange }) {
    const id = uniqueId(name);
    const input = html("input", { type: "number", id, name, min, step: "any", oninput: onchange });
    const node = html("div", { class: "viz-control" },
      html("label", { for: id }, `${label}, ${unit}`), input);
    input.value = value;
    return {
      node, input,
      get value() {
        const number = Number(input.value);
        const isGood = input.value.trim() !== "" && Number.isFinite(number) && number > min;
        input.setAttribute("aria-invalid", String(!isGood));
        return isGood ? number : null;
      },
      set value(wanted) { input.value = wanted; },
    };
  }

  const button = (text, onclick, attributes) => html("button", { type: "button", onclick, ...attributes }, text);

  // A table of rows of texts, the first column a heading. An entry of `head` is a text, or [text, [texts below it]].
  function table(caption, head, rows) {
    const isGrouped = head.some(Array.isArray);
    const top = head.map((entry) => (Array.isArray(entry)
      ? html("th", { scope: "colgroup", colspan: entry[1].length, class: "group" }, entry[0])
      : html("th", { scope: "col", rowspan: isGrouped ? 2 : null }, entry)));
    const below = head.filter(Array.isArray).flatMap(([, texts]) => texts);
    return html("table", {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, top), isGrouped ? html("tr", {}, below.map((text) => html("th", { scope: "col" }, text))) : null),
      html("tbody", {}, rows.map(([first, ...rest]) => html("tr", {},
        html("th", { scope: "row" }, first), rest.map((text) => html("td", {}, text))))));
  }

  // Round numbers from 0 to `end`, at most `most` steps apart.
  function ticks(end, most) {
    const rough = Math.max(end, 1e-9) / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
    const found = [];
    for (let i = 0; i * size <= end * (1 + 1e-9); i += 1) found.push(Number((i * size).toPrecision(12)));
    return found;
  }

  // 12345 -> "12,345", 0.1234 -> "0.123".
  function number(value) {
    if (value === null || value === undefined) return "–";
    const text = Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
    const [whole, rest] = text.split(".");
    return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest ? `.${rest}` : "");
  }

  function bytes(value) {
    const units = ["bytes", "KB", "MB", "GB", "TB"];
    let i = 0;
    while (value >= 1000 && i < units.length - 1) { value /= 1000; i += 1; }
    return `${number(value)} ${units[i]}`;
  }

  const nameOf = (node) => node.getAttribute("name");

  const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

  // The name of a custom element must have a hyphen.
  const elementOf = (figure) => (figure.includes("-") ? figure : `viz-${figure}`);
  const define = (figure, constructor) => customElements.define(elementOf(figure), constructor);

  // The base of the elements. A figure has `build()`, which returns its nodes, and `draw(width)`.
  class Figure extends HTMLElement {
    connectedCallback() {
      if (this.started) return;
      if (document.readyState === "loading") {
        document.addEventListener("DOMContentLoaded", () => this.start(), { once: true });
      } else {
        this.start();
      }
    }

    start() {
      if (this.started) return;
      this.started = true;
      this.classList.add("viz");
      try {
        this.canvas = html("div", { class: "viz-canvas" });
        this.summary = html("p", { class: "viz-summary", role: "status", "aria-live": "polite" });
        this.replaceChildren(...this.build());
        this.redraw();
        new ResizeObserver(() => this.resized()).observe(this.canvas);
      } catch (error) {
        this.refuse(error);
      }
    }

    resized() {
      if (Math.abs(this.canvas.clientWidth - this.drawnWidth) > 1) this.redraw();
    }

    redraw() {
      this.drawnWidth = this.canvas.clientWidth;
      this.draw(Math.max(280, this.drawnWidth));
    }

    // What the reader changes: in sight what the attribute `first` names, everything else behind "More". It names one control,
    // or actions that one button does one after another.
    offer(controls, otherwise, ...more) {
      const words = this.getAttribute("first") ?? otherwise;
      const named = this.actions ? words.split(" ") : [words];
      const shown = controls.filter(({ node }) => !node.hidden).map(({ input }) => nameOf(input));
      const allowed = [...(named.length === 1 ? shown : []), ...(this.actions ? [...this.actions.children].map(nameOf) : [])];
      const wrong = named.find((name) => !allowed.includes(name));
      if (wrong !== undefined) throw new Error(`first is one of ${allowed.join(", ")}, not ${wrong}`);
      const first = controls.find(({ input }) => nameOf(input) === named[0]);
      if (!first) {
        this.story = named;
        this.lead = button("", () => this.nextAction().click());
        this.showLead();
      }
      const others = controls.filter((control) => control !== first).map(({ node }) => node);
      return [
        html("div", { class: "viz-first" }, first ? first.node : this.lead),
        html("details", { class: "viz-more" }, html("summary", {}, "More"), this.actions, html("div", { class: "viz-controls" }, others), more),
      ];
    }

    // Buttons, [name, text, does, isOff] each. The one that has the focus keeps it, or another one gets it where it is gone or off.
    showActions(list) {
      const focused = document.activeElement && this.actions.contains(document.activeElement) ? document.activeElement.name : null;
      this.actions.replaceChildren(...list.map(([name, text, does, isOff]) => button(text, () => this.act(name, does), { name, disabled: isOff })));
      if (this.lead) this.showLead();
      if (focused === null) return;
      const able = [...this.actions.children].filter((each) => !each.disabled);
      (able.find(({ name }) => name === focused) || able[0]).focus();
    }

    act(name, does) {
      if (this.lead && nameOf(this.nextAction()) === name) this.place = Math.min(this.story.indexOf(name, this.place) + 1, this.story.length - 1);
      does();
      this.redraw();
    }

    // The button of the story's next action that can be done. The last one is done again and again, until only a new start is left.
    nextAction() {
      const able = (name) => [...this.actions.children].find((each) => nameOf(each) === name && !each.hasAttribute("disabled"));
      return this.story.slice(this.place).map(able).find(Boolean) ?? able("restart");
    }

    showLead() {
      this.lead.textContent = this.nextAction().textContent;
    }

    refuse(error) {
      const name = this.localName;
      this.replaceChildren(html("p", { class: "viz-error", role: "alert" }, `${name}: ${error.message}`));
    }

    word(name, allowed, otherwise) {
      const value = this.getAttribute(name) ?? otherwise;
      if (!allowed.includes(value)) throw new Error(`${name} is one of ${allowed.join(", ")}, not ${value}`);
      return value;
    }

    number(name, otherwise, { min = 0, max = Infinity, integer = true } = {}) {
      const value = this.hasAttribute(name) ? Number(this.getAttribute(name)) : otherwise;
      if (!(value >= min && value <= max) || (integer && !Number.isInteger(value))) {
        const kind = integer ? "an integer" : "a number";
        throw new Error(`${name} must be ${kind} from ${min} to ${max}, not ${this.getAttribute(name)}`);
      }
      return value;
    }

    numbers(name, otherwise, min, max) {
      const text = this.getAttribute(name) ?? otherwise;
      const values = text.split(/[\s,]+/).filter(Boolean).map(Number);
      if (values.length === 0 || values.some((value) => !Number.isInteger(value) || value < min || value > max)) {
        throw new Error(`${name} must be integers from ${min} to ${max}, not ${text}`);
      }
      return values;
    }
  }

  return {
    html, svg, add, drawing, slider, choice, numberField, button, table, ticks, number, bytes, plural, elementOf, define, Figure,
  };
})();
