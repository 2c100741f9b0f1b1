// Behaviour of every page. Pages work without it, except for the theme switch and the parts that htmx loads.
const root = document.documentElement;

function showTheme() {
  const dark = root.dataset.theme === "dark";
  for (const button of document.querySelectorAll("[data-theme-toggle]")) button.setAttribute("aria-pressed", String(dark));
}

function toggleTheme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  showTheme();
  document.dispatchEvent(new CustomEvent("themechange"));
}

function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    announce(`${button.dataset.copy} is copied`);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  } catch {
    announce("The browser did not allow copying");
  }
}

const OWN_ZONE = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });

function showMoments(within) {
  for (const moment of within.querySelectorAll("time[datetime]:not([title])")) {
    moment.title = moment.textContent;
    moment.textContent = OWN_ZONE.format(new Date(moment.dateTime));
  }
}

// The compare button needs exactly two ticked boxes; further boxes are disabled.
function countTicks() {
  for (const button of document.querySelectorAll("[data-needs-two]")) {
    const boxes = [...document.querySelectorAll(`input[type=checkbox][form="${button.form.getAttribute("id")}"]`)];
    const ticked = boxes.filter((box) => box.checked).length;
    button.disabled = ticked !== 2;
    for (const box of boxes) box.disabled = ticked >= 2 && !box.checked;
  }
}

// Makes the columns of a list buttons that sort its rows.
function makeSortable(table) {
  for (const cell of table.tHead.rows[0].cells) {
    if ("fixed" in cell.dataset || cell.querySelector("button")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
  }
}

// Numbers and times sort by data-order, all else by its text; cells without a value come last.
function sortKey(row, at) {
  const cell = row.cells[at];
  const text = cell.dataset.order ?? cell.textContent.trim().toLowerCase();
  return text === "" ? null : "order" in cell.dataset ? Number(text) : text;
}

function sortRows(button) {
  const cell = button.closest("th");
  const [body] = cell.closest("table").tBodies;
  const sign = cell.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const keyed = [...body.rows].map((row) => [sortKey(row, cell.cellIndex), row]);
  keyed.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * (typeof a === "number" ? a - b : a.localeCompare(b))));
  body.append(...keyed.map(([, row]) => row));
}

// Shows the parts of a form that belong to the chosen option. Fields stay enabled until a browser that navigated back has
// restored them: it drops the file of a disabled field.
function showChosen(form, restored = true) {
  for (const part of form.querySelectorAll("[data-when]")) {
    const [name, value] = part.dataset.when.split("=");
    const on = form.elements[name].value === value;
    part.hidden = !on;
    if (restored) for (const field of part.querySelectorAll("input, select, textarea")) field.disabled = !on;
  }
}

// Reports a file that is too large for the service before it is sent.
function checkSize(input) {
  const most = Number(input.dataset.mostBytes);
  const large = [...input.files].find((file) => file.size > most);
  const field = input.getAttribute("aria-label") ?? input.labels[0].textContent;
  const words = large ? `${field}: ${large.name} has ${large.size.toLocaleString("en")} bytes; expected at most ${most.toLocaleString("en")} bytes.` : "";
  input.setCustomValidity(words);
  if (large) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  document.getElementById(`${input.id}-wrong`).textContent = words;
  return !large;
}

async function readFile(input) {
  const target = document.getElementById(input.dataset.readInto);
  const file = input.files[0];
  if (file && target) target.value = await file.text();
}

function followLogs(within) {
  for (const log of within.querySelectorAll("[data-follow]")) log.scrollTop = log.scrollHeight;
}

// Leads on from a page that has nothing more to show, which the history then does not keep.
function goOn(within) {
  const link = within.querySelector("[data-go-on]");
  if (link) location.replace(link.href);
}

function prepare(within) {
  showMoments(within);
  countTicks();
  followLogs(within);
  for (const form of within.querySelectorAll("form[data-choices]")) showChosen(form, document.readyState === "complete");
  for (const table of within.querySelectorAll("table[data-sortable]")) makeSortable(table);
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-toggle]")) toggleTheme();
  const copied = event.target.closest("[data-copy]");
  if (copied) copy(copied);
  const sorted = event.target.closest("button.sort");
  if (sorted) sortRows(sorted);
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-choices]");
  if (form) showChosen(form);
  const small = !event.target.matches("[data-most-bytes]") || checkSize(event.target);
  if (small && event.target.matches("[data-read-into]")) readFile(event.target);
  countTicks();
});

addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-choices]")) showChosen(form);
  for (const input of document.querySelectorAll("[data-most-bytes]")) if (input.files.length) checkSize(input);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (localStorage.getItem("theme")) return;
  root.dataset.theme = event.matches ? "dark" : "light";
  showTheme();
  document.dispatchEvent(new CustomEvent("themechange"));
});

document.addEventListener("htmx:afterSettle", (event) => {
  prepare(event.target);
  goOn(event.target);
});

document.addEventListener("htmx:responseError", (event) => {
  const status = event.detail.xhr.status;
  if (status === 401) {
    const below = root.dataset.root;
    location.href = `${below}/sign-in?following=${encodeURIComponent(location.pathname.slice(below.length))}`;
    return;
  }
  const place = event.detail.target;
  if (!place || !place.classList.contains("later")) return;
  place.removeAttribute("aria-busy");
  const note = document.createElement("p");
  note.className = "note";
  const answer = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
  note.textContent = answer.querySelector("main p:not(.status)")?.textContent || "Could not load this content.";
  place.replaceChildren(note);
});

showTheme();
prepare(document);
goOn(document);
