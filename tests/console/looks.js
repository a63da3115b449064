// What a picture would show to a person.
({
  // Yields the texts that are outside of their card, or cut off without saying so.
  outside: () => {
    const found = [], places = ".card, .tile, header, nav, dialog, #gone";
    if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode, element = text.parentElement;
      if (!text.data.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
      if (element.closest("caption, option, .skip, noscript, script, style, thead")) continue;
      const cut = element.closest(".cut");
      if (cut && cut.scrollWidth > cut.clientWidth + 1) {
        if (!cut.getAttribute("title")) found.push(`cut without a title: ${text.data}`);
        continue;
      }
      const place = element.closest(places);
      if (!place) continue;
      const range = document.createRange();
      range.selectNodeContents(text);
      const inner = range.getBoundingClientRect(), outer = place.getBoundingClientRect();
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1) found.push(`outside of its card: ${text.data}`);
      if (inner.right > innerWidth + 1) found.push(`outside of the screen: ${text.data}`);
    }
    return found;
  },

  // Yields the texts whose contrast is below that of WCAG 2 at level AA.
  pale: () => {
    const found = new Set();
    const read = (color) => {
      const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
      return [r, g, b, a];
    };
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((each) => each / 255).map((each) => each <= .03928 ? each / 12.92 : ((each + .055) / 1.055) ** 2.4);
      return .2126 * x + .7152 * y + .0722 * z;
    };
    const behind = (element) => {
      for (let each = element; each; each = each.parentElement) {
        const color = read(getComputedStyle(each).backgroundColor);
        if (color[3] === 1) return color;
      }
      return read(getComputedStyle(document.body).backgroundColor);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode, element = text.parentElement;
      if (!text.data.trim() || !element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
      if (element.closest("caption, option, .skip, noscript, script, style, button:disabled")) continue;
      const style = getComputedStyle(element), isDrawn = element instanceof SVGElement;
      const [one, two] = [light(read(isDrawn ? style.fill : style.color)), light(behind(element))];
      const ratio = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
      const px = parseFloat(style.fontSize), isLarge = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (isLarge ? 3 : 4.5)) found.add(`${ratio.toFixed(2)}: ${text.data}`);
    }
    return [...found];
  },

  // Yields controls without a name for those who do not see them.
  nameless: () => [...document.querySelectorAll("button, input, select, textarea, a")].filter((each) => each.checkVisibility()
    && !each.textContent.trim() && !each.labels?.length && !each.getAttribute("aria-label")).map((each) => each.outerHTML),
})
