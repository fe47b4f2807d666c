// A table that is wider than its page shows each row as a list: the first cell as its title, the others under the names of their columns.
// Without JavaScript such a table scrolls.
(() => {
  const wrappers = [...document.querySelectorAll(".table-wrapper")].filter((wrapper) => wrapper.querySelector("thead"));
  for (const wrapper of wrappers) {
    const names = [...wrapper.querySelectorAll("thead th")].map((cell) => cell.textContent);
    for (const row of wrapper.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => {
        if (column && cell.textContent.trim()) cell.dataset.column = names[column];
      });
    }
  }
  const arrange = () => {
    for (const wrapper of wrappers) {
      wrapper.classList.remove("rows-as-lists");
      wrapper.classList.toggle("rows-as-lists", wrapper.scrollWidth > wrapper.clientWidth);
    }
  };
  addEventListener("load", arrange);
  addEventListener("resize", arrange);
})();
