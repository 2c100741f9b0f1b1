// Draws every [data-chart] element from the JSON next to it. Colours come from the style sheet, so that charts follow the theme.
import { options } from "./chart-options.js";

const drawn = new Map();
const resized = new ResizeObserver((entries) => {
  for (const entry of entries) drawn.get(entry.target)?.resize();
});

function palette(place) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    tones: ["a", "b", "d", "e", "f", "g", "h"].map(colour),
    colour,
    text: colour("text"),
    soft: colour("soft"),
    line: colour("line"),
    surface: colour("surface"),
    font: getComputedStyle(document.body).fontFamily,
    width: place.clientWidth || 600,
  };
}

function draw(place) {
  const source = document.getElementById(place.dataset.source);
  const kind = options[place.dataset.chart];
  if (!source || !kind) return;
  let chart = drawn.get(place);
  if (!chart) {
    chart = window.echarts.init(place, null, { renderer: "canvas" });
    drawn.set(place, chart);
    resized.observe(place);
  }
  chart.setOption(kind(JSON.parse(source.textContent), palette(place)), true);
  place.dataset.drawn = "true";
}

function drawAll() {
  for (const [place, chart] of drawn) {
    if (place.isConnected) continue;
    resized.unobserve(place);
    chart.dispose();
    drawn.delete(place);
  }
  for (const place of document.querySelectorAll("[data-chart]:not([data-drawn])")) draw(place);
}

document.addEventListener("themechange", () => {
  for (const place of drawn.keys()) draw(place);
});
document.addEventListener("htmx:afterSettle", drawAll);
// The content of a closed <details> has no size yet.
document.addEventListener("toggle", () => drawn.forEach((chart) => chart.resize()), true);
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-picks]")) return;
  for (const part of document.querySelectorAll(`[data-pick="${event.target.dataset.picks}"]`)) part.hidden = part.dataset.value !== event.target.value;
  drawn.forEach((chart) => chart.resize());
});
// Canvas text needs the font to be loaded.
document.fonts.ready.then(drawAll);
