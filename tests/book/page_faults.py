"""What may be wrong with how a page of the book is laid out, each found by a script in the page."""

from playwright.sync_api import Page

TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def too_wide(page: Page) -> list[str]:
    """What a page scrolls in sideways: the column of the text, or one of those around it."""
    return page.evaluate(
        """() => {
            const found = [];
            for (let each = document.querySelector("main"); each; each = each.parentElement)
                if (each.scrollWidth > each.clientWidth) found.push(`${each.tagName} ${each.id}`);
            return found;
        }"""
    )


def without_hint(page: Page) -> list[str]:
    """What is scrolled sideways and has no shadow where it is cut off, or has one and is all there."""
    page.evaluate(TWO_FRAMES)
    return page.evaluate(
        """() => {
            const found = [];
            for (const each of document.querySelectorAll("main *")) {
                const { overflowX, boxShadow } = getComputedStyle(each);
                if (!["auto", "scroll"].includes(overflowX) || each.scrollLeft > 0) continue;
                if (each.scrollWidth > each.clientWidth !== boxShadow.includes("inset"))
                    found.push(`${each.outerHTML.slice(0, 80)} ${each.scrollWidth} in ${each.clientWidth}`);
            }
            return found;
        }"""
    )


def other_fonts(page: Page) -> list[str]:
    """Words in another font than the page's, apart from code and formulas."""
    return page.evaluate(
        """() => {
            const fontOf = (each) => getComputedStyle(each).fontFamily;
            const mono = getComputedStyle(document.documentElement).getPropertyValue("--mono-font").trim();
            const code = ".katex, .katex *, code, pre, pre *";
            const words = [...document.querySelectorAll(`main :not(${code})`)].filter((each) =>
                [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
            return words.filter((each) => ![fontOf(document.body), mono].includes(fontOf(each)))
                .map((each) => `${each.outerHTML.slice(0, 80)} in ${fontOf(each)}`);
        }"""
    )


def covered_notes(page: Page) -> list[str]:
    """Notes in the margin that are not shown, that meet something else, or that go on below the arrow."""
    return page.evaluate(
        """() => {
            const all = (selector) => [...document.querySelectorAll(selector)];
            const notes = all("main .margin-note"), boxOf = (each) => each.getBoundingClientRect();
            const boxes = [...all("main > :not(p, ul, ol)"), ...notes].map(boxOf);
            const range = document.createRange();
            for (const text of all("main > :is(p, ul, ol)")) {
                const nodes = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
                while (nodes.nextNode()) {
                    range.selectNodeContents(nodes.currentNode);
                    if (!nodes.currentNode.parentElement.closest(".margin-note"))
                        boxes.push(...range.getClientRects());
                }
            }
            const arrows = all(".nav-chapters.next").map(boxOf).filter((box) => box.width);
            const end = Math.min(document.documentElement.clientWidth, ...arrows.map((box) => box.left));
            return notes.filter((note) => {
                const { left, right, top, bottom, width } = boxOf(note);
                const meets = boxes.filter((box) =>
                    box.left < right && left < box.right && box.top < bottom && top < box.bottom);
                return !width || right > end || meets.length > 1; // it meets itself
            }).map((note) => note.textContent);
        }"""
    )
