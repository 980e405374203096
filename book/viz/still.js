// As much of a page as the figures need to draw themselves once, where there is no browser: `still.py` runs it.
var document = { readyState: "complete", createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag) };
var customElements = { found: {}, define(name, constructor) { this.found[name] = constructor; } };
var ResizeObserver = class { observe() {} };

class Node {
  constructor(tag = "") {
    Object.assign(this, { tag, attributes: {}, children: [], text: "", classList: { add() {} } });
  }

  get value() { return this.text; }
  set value(value) { this.text = String(value); }

  addEventListener() {}
  setAttribute(name, value) { this.attributes[name] = String(value); if (name === "value") this.value = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  hasAttribute(name) { return name in this.attributes; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((child) => (child instanceof Node ? child.textContent : child)).join(""); }

  get outerHTML() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`);
    const children = this.children.map((child) => (child instanceof Node ? child.outerHTML : escaped(String(child))));
    return `<${this.tag}${attributes.join("")}>${children.join("")}</${this.tag}>`;
  }
}

var HTMLElement = Node;
var escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

// The pictures of an element with these attributes, below each other: {svg}, or {error} with the
// sentence that it would show instead.
function still(name, attributes, width) {
  const element = new customElements.found[TinyViz.elementOf(name)](name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.canvas = new Node("div");
  element.summary = new Node("p");
  try {
    element.build();
    element.draw(width);
  } catch (error) {
    return { error: error.message };
  }
  return { svg: stacked(element.canvas.children, width).outerHTML.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ') };
}

function stacked(pictures, width) {
  if (pictures.length === 1) return pictures[0];
  let height = 0;
  for (const picture of pictures) {
    picture.setAttribute("y", height);
    height += Number(picture.getAttribute("height"));
  }
  return TinyViz.drawing(width, height, pictures.map((picture) => picture.getAttribute("aria-label")).join("; "), ...pictures);
}
