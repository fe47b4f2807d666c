// Draws the mermaid diagrams of a page with the copy of mermaid beside it, so that no network is needed.
// Without JavaScript the page shows the text of each diagram.
(() => {
  const theme = document.body.dataset.theme;
  const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  globalThis.mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "default" });
  document.querySelectorAll(".highlight-mermaid").forEach(async (block, index) => {
    const { svg } = await globalThis.mermaid.render(`diagram-${index}`, block.textContent);
    const width = /viewBox="\S+ \S+ (\S+)/.exec(svg)[1];
    block.outerHTML = `<figure class="diagram" style="--readable: ${0.6 * width}px">${svg}</figure>`;
  });
})();
