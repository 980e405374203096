// As much of a page as the figures need to draw themselves once, where there is no browser: `still.py` runs it.
var document = { readyState: "complete", createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag) };
var customElements = { found: {}, define(name, constructor) { this.found[name] = constructor; } };
var ResizeObserver = class { observe() {} };

class Node {
  constructor(tag = "") {
    Object.assign(this, { tag, attributes: {}, children: [], value: "", classList: { add() {} } });
  }

  addEventListener() {}
  setAttribute(name, value) { this.attributes[name] = String(value); if (name === "value") this.value = String(value); }
  getAttribute(name) { return this.attributes[name] ?? null; }
  hasAttribute(name) { return name in this.attributes; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  set textContent(text) { this.children = [text]; }

  get outerHTML() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`);
    const children = this.children.map((child) => (child instanceof Node ? child.outerHTML : escaped(String(child))));
    return `<${this.tag}${attributes.join("")}>${children.join("")}</${this.tag}>`;
  }
}

var HTMLElement = Node;
var escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

// The picture of an element with these attributes, or a SyntaxError of the sentence that it would show instead.
function still(name, attributes, width) {
  const element = new customElements.found[name](name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.canvas = new Node("div");
  element.summary = new Node("p");
  element.build();
  element.draw(width);
  return element.canvas.children.map((child) => child.outerHTML).join("").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ');
}
