// A table that is wider than its page shows each row as a list: the first cell as its title, the others behind the
// names of their columns. On a wide screen, long names are broken first. Without JavaScript such a table scrolls.
(() => {
  const wrappers = [...document.querySelectorAll(".table-wrapper")].filter((wrapper) => wrapper.querySelector("thead"));
  for (const wrapper of wrappers) {
    const names = [...wrapper.querySelectorAll("thead th")].map((cell) => cell.textContent);
    for (const row of wrapper.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => {
        if (!cell.textContent.trim()) cell.classList.add("empty");
        else if (column) cell.dataset.column = names[column];
      });
    }
  }
  const isTooWide = (wrapper) => wrapper.scrollWidth > wrapper.clientWidth;
  const arrange = () => {
    const isWideScreen = matchMedia("(min-width: 46em)").matches;
    for (const wrapper of wrappers) {
      wrapper.classList.remove("broken-names", "rows-as-lists");
      if (isWideScreen && isTooWide(wrapper)) wrapper.classList.add("broken-names");
      if (isTooWide(wrapper)) wrapper.classList.add("rows-as-lists");
    }
  };
  addEventListener("load", arrange);
  addEventListener("resize", arrange);
})();
