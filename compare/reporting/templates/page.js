
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

// Charts show the value under the pointer, or with the figure in focus and the arrow keys. Buttons switch series and axis.
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

for (const figure of document.querySelectorAll(".plot")) {
  const scales = [figure.querySelector("svg"), figure.querySelector("template")?.content.firstElementChild].filter(Boolean);
  const parts = scales.flatMap((svg) => [...svg.querySelectorAll("[data-series]")]);
  const series = new Set(parts.map((part) => part.dataset.series));
  if (!series.size) continue;
  const value = figure.appendChild(document.createElement("output"));
  const controls = figure.appendChild(document.createElement("div"));
  controls.className = "controls";
  let current;

  const marks = () => [...figure.querySelectorAll("[data-label]")].filter((mark) => !mark.closest(".off"));
  const show = (mark) => {
    current?.classList.remove("current");
    current = mark;
    value.textContent = mark?.dataset.label ?? "";
    if (!mark) return;
    mark.classList.add("current");
    const box = mark.getBoundingClientRect();
    const own = figure.getBoundingClientRect();
    const left = Math.min(box.right - own.left + 6, figure.clientWidth - value.offsetWidth - 6);
    value.style.left = `${Math.max(left, 0) + figure.scrollLeft}px`;
    value.style.top = `${Math.max(box.top - own.top - value.offsetHeight - 6, 0)}px`;
  };

  const button = (text, pressed, act) => {
    const made = controls.appendChild(document.createElement("button"));
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-pressed", pressed);
    made.addEventListener("click", () => {
      show();
      act(made.getAttribute("aria-pressed") !== "true");
      made.setAttribute("aria-pressed", made.getAttribute("aria-pressed") !== "true");
    });
  };

  for (const name of series.size > 1 ? series : []) {
    const own = parts.filter((part) => part.dataset.series === name);
    button(name, true, (on) => own.forEach((part) => part.classList.toggle("off", !on)));
  }
  if (scales.length > 1) button("logarithmic axis", false, (on) => scales[+!on].replaceWith(scales[+on]));
  figure.addEventListener("pointerover", (event) => show(event.target.closest("[data-label]")));
  figure.addEventListener("pointerleave", () => show());
  figure.addEventListener("blur", () => show());
  figure.addEventListener("focus", () => show(marks()[0]));
  figure.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.target !== figure) return;
    event.preventDefault();
    const shown = marks();
    show(shown.at((shown.indexOf(current) + step) % shown.length));
  });
}

// On paper all sections are open, and a wide table has smaller letters, so that its numbers stay whole. If they were too small to
// read, its rows become columns.
const PAPER = { width: 950, font: 10, least: 7, screenFont: 14 }; // pixels: what landscape paper leaves, and sizes of letters
const closed = [];

function paperFont(table) {
  table.style.width = "min-content";
  const width = (table.offsetWidth * PAPER.font) / PAPER.screenFont;
  table.style.width = "";
  return Math.min(PAPER.font, (PAPER.font * PAPER.width) / width);
}

addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not([open])")) {
    folded.open = true;
    closed.push(folded);
  }
  for (const table of document.querySelectorAll(".scroll table.sortable")) {
    const font = paperFont(table);
    if (font < PAPER.least) table.classList.add("turned");
    const turned = paperFont(table);
    if (turned < font) table.classList.remove("turned");
    table.style.fontSize = `${Math.max(font, turned)}px`;
    table.classList.add("fitted");
  }
});

addEventListener("afterprint", () => {
  for (const folded of closed.splice(0)) folded.open = false;
  for (const table of document.querySelectorAll("table.fitted")) {
    table.style.fontSize = "";
    table.classList.remove("fitted", "turned");
  }
});
