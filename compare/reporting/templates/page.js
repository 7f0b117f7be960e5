
"use strict";
// Tables sort by a click on a heading, or Enter or Space on it: up, down, and as they were. Without this they stand as they are.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null); // what is missing stays below
  const numbers = typeof one === "number" && typeof other === "number";
  return sign * (numbers ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true }));
}

function value(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.missing !== undefined) return null;
  return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const before = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = NEXT[head.getAttribute("aria-sort")];
      for (const each of heads) each.setAttribute("aria-sort", each === head ? order : "none");
      const sign = order === "descending" ? -1 : 1;
      const sorted = (one, other) => compare(value(one, column), value(other, column), sign);
      body.append(...(order === "none" ? before : [...before].sort(sorted)));
    });
  });
}
