// What mdBook leaves out: what scrolls inside the page can be focused and scrolled by keyboard, the arrow keys of a
// control are its own and do not turn the page, and the label that opens the table of contents is a button. A shape, a
// name or an option is not broken over two lines, a path only after a slash, a call only after its parenthesis, and a
// sentence in a table has room for two words per line. Where that makes a table too wide for the page, its shapes and
// names may be broken after all.
(function () {
  "use strict";

  const SCROLLS = "main pre, main .table-wrapper, main .katex-display, main .drawing";
  const UNBROKEN = 24; // characters of code
  const SHORT = 12; // characters of code that stay together even in a table without room
  const SHORT_LINK = 8; // characters: a day or a week
  const SHORT_CELL = 16; // characters of a link or a cell that a wide page keeps on one line
  const SENTENCE = 30; // characters of a cell
  const OWN_KEYS = "input, select, textarea, button, summary, [tabindex], [role]";

  const isTooWide = (element) => element.scrollWidth > element.clientWidth;

  function fitTables() {
    for (const wrapper of document.querySelectorAll("main .table-wrapper")) {
      wrapper.classList.remove("tight");
      if (!isTooWide(wrapper)) continue;
      wrapper.classList.add("tight");
      if (isTooWide(wrapper)) wrapper.classList.remove("tight"); // to be scrolled in any case
    }
  }

  function markScrolling() {
    fitTables();
    for (const element of document.querySelectorAll(SCROLLS)) {
      if (isTooWide(element)) element.tabIndex = 0;
      else element.removeAttribute("tabindex");
    }
  }

  function allowBreaks(element, places) {
    const [first, ...rest] = element.textContent.split(places);
    element.replaceChildren(first, ...rest.flatMap((part) => [document.createElement("wbr"), part]));
  }

  function keepOptions(element) {
    element.replaceChildren(...element.textContent.split(/( (?=-)|(?<! -[^ ]*) )/).map((word) => {
      if (!word.includes("-") || word.length > UNBROKEN) return word;
      const whole = document.createElement("span");
      whole.className = "unbroken";
      whole.textContent = word;
      return whole;
    }));
  }

  function keepWhole(element) {
    const { length } = element.textContent;
    const isPlain = element.childElementCount === 0;
    if (length <= UNBROKEN) {
      element.classList.add("unbroken");
      if (length > SHORT && isPlain && element.closest("td, th")) {
        element.classList.add("loose");
        allowBreaks(element, /(?<=[/_](?=\w))/);
      }
    } else if (isPlain && element.textContent.includes(" ")) keepOptions(element);
    else if (isPlain) allowBreaks(element, /(?<=[/(](?=\w))/);
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

  document.querySelectorAll("main :not(pre) > code, main pre.command > code").forEach(keepWhole);
  for (const cell of document.querySelectorAll("main .table-wrapper td")) {
    if (cell.textContent.length > SENTENCE) cell.classList.add("wordy");
    else if (cell.textContent.length <= SHORT_CELL) cell.classList.add("whole");
    for (const link of cell.querySelectorAll("a")) {
      link.classList.toggle("unbroken", !link.textContent.includes(" ") || link.textContent.length <= SHORT_LINK);
      link.classList.toggle("whole", link.textContent.length <= SHORT_CELL);
    }
  }
  makeButton(document.getElementById("mdbook-sidebar-toggle"));
  document.querySelector("main").addEventListener("keydown", keepKeys);
  window.addEventListener("resize", markScrolling);
  document.addEventListener("toggle", markScrolling, true);
  document.fonts.ready.then(markScrolling);
  markScrolling();
})();
