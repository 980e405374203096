// What mdBook leaves out: what scrolls inside the page can be focused and scrolled by keyboard, the arrow keys of a
// control are its own and do not turn the page, and the label that opens the table of contents is a button. A shape or
// a name is not broken over two lines, a path only after a slash, and a sentence in a table has room for two words a line.
(function () {
  "use strict";

  const SCROLLS = "main pre, main .table-wrapper, main .katex-display, main .drawing";
  const UNBROKEN = 24; // characters of code
  const SENTENCE = 30; // characters of a cell
  const OWN_KEYS = "input, select, textarea, button, summary, [tabindex], [role]";

  function markScrolling() {
    for (const element of document.querySelectorAll(SCROLLS)) {
      if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
      else element.removeAttribute("tabindex");
    }
  }

  function keepWhole(element) {
    if (element.textContent.length <= UNBROKEN) element.classList.add("unbroken");
    else if (element.childElementCount === 0 && !element.textContent.includes(" ")) {
      const [first, ...rest] = element.textContent.split(/(?<=\/)/);
      element.replaceChildren(first, ...rest.flatMap((part) => [document.createElement("wbr"), part]));
    }
  }

  function keepKeys(event) {
    if (event.key.startsWith("Arrow") && event.target.closest("main") && event.target.matches(OWN_KEYS)) {
      event.stopPropagation();
    }
  }

  function makeButton(label) {
    label.setAttribute("role", "button");
    label.tabIndex = 0;
    label.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      label.click();
    });
  }

  document.querySelectorAll("main :not(pre) > code").forEach(keepWhole);
  for (const cell of document.querySelectorAll("main .table-wrapper td")) {
    if (cell.textContent.length > SENTENCE) cell.classList.add("wordy");
    for (const link of cell.querySelectorAll("a")) link.classList.toggle("unbroken", !link.textContent.includes(" "));
  }
  makeButton(document.getElementById("mdbook-sidebar-toggle"));
  document.querySelector("main").addEventListener("keydown", keepKeys);
  window.addEventListener("resize", markScrolling);
  document.addEventListener("toggle", markScrolling, true);
  document.fonts.ready.then(markScrolling);
  markScrolling();
})();
