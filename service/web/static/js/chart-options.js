// ECharts options from a chart's data, one function per kind. Tooltips are drawn on the canvas, because the pages' CSP forbids inline styles.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

function bytes(value) {
  let at = 0;
  while (value >= 1024 && at < SIZES.length - 1) [value, at] = [value / 1024, at + 1];
  return `${+value.toPrecision(3)} ${SIZES[at]}`;
}

function seconds(value) {
  const [scale, unit] = TIMES.find(([least]) => Math.abs(value) >= least) || TIMES[3];
  return value ? `${+(value / scale).toPrecision(3)} ${unit}` : "0";
}

export const digits = (value) => (value === 0 ? "0" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(4)}`);

// Labels of an axis: close together they need more digits than single values.
export const ticks = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-4) ? value.toExponential(2) : `${+value.toPrecision(6)}`);

const LEGEND_ROW = 22;

// Height of the legend above a chart: its rows at about 7 pixels a letter.
function legendHeight(names, paint) {
  let rows = 1;
  let used = 0;
  for (const name of names) {
    const width = 7 * name.length + 36;
    if (used && used + width > paint.width) [rows, used] = [rows + 1, 0];
    used += width;
  }
  return 14 + LEGEND_ROW * rows;
}

// Labels of bars: whole, in several lines, and at most a third of a narrow chart.
const names = (paint, most) => ({ color: paint.text, fontFamily: paint.font, width: Math.min(most, Math.round(paint.width / 3)), overflow: "break", lineHeight: 14, hideOverlap: false, interval: 0 });

function base(paint, more) {
  return {
    animation: false,
    textStyle: { fontFamily: paint.font, color: paint.text, fontSize: 12 },
    color: paint.tones,
    grid: { left: 8, right: 20, top: 36, bottom: 8, containLabel: true },
    legend: { top: 0, left: 0, itemWidth: 11, itemHeight: 11, itemGap: 18, icon: "roundRect", textStyle: { color: paint.soft, fontFamily: paint.font }, inactiveColor: paint.line },
    tooltip: { renderMode: "richText", confine: true, backgroundColor: paint.surface, borderColor: paint.line, textStyle: { color: paint.text, fontFamily: paint.font, fontSize: 12 } },
    ...more,
  };
}

function axis(paint, more) {
  return {
    nameTextStyle: { color: paint.soft, fontFamily: paint.font },
    nameLocation: "middle",
    axisLine: { lineStyle: { color: paint.line } },
    axisTick: { show: false },
    axisLabel: { color: paint.soft, fontFamily: paint.font, hideOverlap: true, ...(more.type === "value" ? { formatter: ticks } : {}) },
    splitLine: { lineStyle: { color: paint.line } },
    minorSplitLine: { show: false },
    ...more,
  };
}

// A vertical axis, whose name is above it: beside it, wide labels would cover it or push it out.
const upright = (paint, more) => axis(paint, { nameLocation: "end", nameGap: 10, nameTextStyle: { color: paint.soft, fontFamily: paint.font, align: "left" }, ...more });
const NAME_HEIGHT = 16;

// Stacked horizontal bars.
function stacked(data, paint) {
  const tones = ["a", "b", "c", "d"].map(paint.colour);
  const bars = data.parts.map((part, at) => ({
    name: part.name, type: "bar", stack: "all", barWidth: 16, data: part.values, itemStyle: { color: tones[at % tones.length] },
  })).filter((series) => series.data.some((value) => value > 0));
  return base(paint, {
    tooltip: { ...base(paint).tooltip, trigger: "axis", axisPointer: { type: "none" }, valueFormatter: (value) => `${digits(value)} ${data.unit}` },
    grid: { left: 8, right: 24, top: legendHeight(bars.map((series) => series.name), paint), bottom: 28, containLabel: true },
    xAxis: axis(paint, { type: "value", name: data.unit, nameGap: 26 }),
    yAxis: axis(paint, { type: "category", data: data.names, inverse: true, axisLabel: names(paint, 150), splitLine: { show: false } }),
    series: bars,
  });
}

// Best step time over the search, and the proved lower bound.
function curve(data, paint) {
  const bound = data.bound === null ? {} : {
    markLine: { symbol: "none", silent: true, lineStyle: { color: paint.colour("good"), type: "dashed" }, label: { formatter: "lower bound", position: "insideEndTop", color: paint.colour("good"), fontFamily: paint.font }, data: [{ yAxis: data.bound }] },
  };
  const least = Math.min(...data.points.map((point) => point[1]), data.bound ?? Infinity);
  return base(paint, {
    legend: undefined,
    grid: { left: 8, right: 24, top: 10 + NAME_HEIGHT, bottom: 30, containLabel: true },
    tooltip: { ...base(paint).tooltip, trigger: "axis", valueFormatter: digits },
    xAxis: axis(paint, { type: "value", name: data.x, nameGap: 26, min: 0, splitLine: { show: false } }),
    yAxis: upright(paint, { type: "value", name: data.y, scale: true, axisLabel: { color: paint.soft, fontFamily: paint.font, formatter: ticks, showMinLabel: false }, min: (range) => Math.min(range.min, least) - 0.08 * (range.max - Math.min(range.min, least) || range.max) }),
    series: [{ name: data.y, type: "line", step: "end", symbol: "circle", symbolSize: 6, data: data.points, lineStyle: { width: 2 }, ...bound }],
  });
}

// Spans on lanes: [lane, begin, end, tone, label, text].
function gantt(data, paint) {
  const tones = data.tones.map(({ name, tone }) => ({ name, colour: paint.colour(tone) }));
  const shape = (params, api) => {
    const [x, y] = api.coord([api.value(1), api.value(0)]);
    const [end] = api.coord([api.value(2), api.value(0)]);
    const height = api.size([0, 1])[1] * 0.78;
    const whole = { x: params.coordSys.x, y: params.coordSys.y, width: params.coordSys.width, height: params.coordSys.height };
    const rect = window.echarts.graphic.clipRectByRect({ x, y: y - height / 2, width: Math.max(end - x - 0.6, 0.5), height }, whole);
    if (!rect) return null;
    const text = rect.width > 16 && height > 12 && api.value(4) !== "" ? String(api.value(4)) : "";
    return {
      type: "rect", shape: { ...rect, r: rect.width > 6 ? 2 : 0 }, style: { fill: api.visual("color") },
      textContent: { style: { text, fill: paint.surface, font: `600 10px ${paint.font}` } }, textConfig: { position: "inside" },
    };
  };
  const series = tones.map(({ name, colour }, tone) => ({
    name, type: "custom", renderItem: shape, itemStyle: { color: colour }, encode: { x: [1, 2], y: 0 }, progressive: 0,
    data: data.spans.filter((span) => span[3] === tone),
  }));
  return base(paint, {
    tooltip: { ...base(paint).tooltip, formatter: ({ value }) => `${value[5]}\n${digits(value[1])} to ${digits(value[2])} ${data.unit}  (${digits(value[2] - value[1])} ${data.unit})` },
    grid: { left: 8, right: 20, top: legendHeight(tones.map((tone) => tone.name), paint), bottom: 62, containLabel: true },
    dataZoom: [{ type: "slider", showDetail: false, filterMode: "weakFilter", bottom: 4, height: 20, borderColor: paint.line, fillerColor: "rgba(120,140,170,.18)", handleStyle: { color: paint.soft }, textStyle: { color: paint.soft }, labelFormatter: (value) => digits(value), showDataShadow: false, brushSelect: false }, { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl" }],
    xAxis: axis(paint, { type: "value", name: data.unit, nameGap: 24, min: 0, max: data.end, axisLabel: { alignMaxLabel: "right", color: paint.soft, fontFamily: paint.font, formatter: digits } }),
    yAxis: axis(paint, { type: "category", data: data.lanes, inverse: true, axisLabel: { color: paint.text, fontFamily: paint.font }, splitLine: { show: false } }),
    series,
  });
}

// Measured points with their spread, and the fitted line, on logarithmic axes.
function fit(data, paint) {
  const plain = data.points.filter((point) => !point.outlier);
  const outliers = data.points.filter((point) => point.outlier);
  const dots = (points) => points.map((point) => [point.bytes, point.median, point.low, point.high]);
  const bars = (params, api) => {
    const [x, low] = api.coord([api.value(0), api.value(2)]);
    const [, high] = api.coord([api.value(0), api.value(3)]);
    return { type: "line", shape: { x1: x, y1: low, x2: x, y2: high }, style: { stroke: paint.tones[0], lineWidth: 1.5, opacity: 0.5 } };
  };
  const sizes = data.points.map((point) => point.bytes);
  const tip = ({ value }) => `${bytes(value[0])}: ${seconds(value[1])}`;
  return base(paint, {
    tooltip: { ...base(paint).tooltip, formatter: tip },
    grid: { left: 8, right: 24, top: NAME_HEIGHT + legendHeight(["Fit", "Spread", "Measured", "Outliers"], paint), bottom: 30, containLabel: true },
    xAxis: axis(paint, { type: "log", logBase: 4, min: Math.min(...sizes), max: Math.max(...sizes), name: "message", nameGap: 26, axisLabel: { color: paint.soft, fontFamily: paint.font, formatter: bytes, hideOverlap: true } }),
    yAxis: upright(paint, { type: "log", name: "time", axisLabel: { color: paint.soft, fontFamily: paint.font, formatter: seconds } }),
    series: [
      { name: "Fit", type: "line", data: data.line, symbol: "none", lineStyle: { width: 2, color: paint.tones[1] }, itemStyle: { color: paint.tones[1] } },
      { name: "Spread", type: "custom", renderItem: bars, data: dots(data.points), silent: true, encode: { x: 0, y: [2, 3] }, itemStyle: { color: paint.tones[0], opacity: 0.5 } },
      { name: "Measured", type: "scatter", data: dots(plain), symbolSize: 8, itemStyle: { color: paint.tones[0] } },
      ...(outliers.length ? [{ name: "Outliers", type: "scatter", data: dots(outliers), symbolSize: 9, itemStyle: { color: paint.surface, borderColor: paint.colour("bad"), borderWidth: 2 } }] : []),
    ],
  });
}

// Groups of bars next to each other.
function bars(data, paint) {
  return base(paint, {
    tooltip: { ...base(paint).tooltip, trigger: "axis", axisPointer: { type: "none" }, valueFormatter: (value) => (value === null ? "–" : `${digits(value)} ${data.unit}`) },
    legend: data.series.length > 1 ? base(paint).legend : undefined,
    grid: { left: 8, right: 24, top: data.series.length > 1 ? legendHeight(data.series.map((series) => series.name), paint) : 12, bottom: 30, containLabel: true },
    xAxis: axis(paint, { type: "value", name: data.unit, nameGap: 26 }),
    yAxis: axis(paint, { type: "category", data: data.names, inverse: true, axisLabel: names(paint, 190), splitLine: { show: false } }),
    series: data.series.map((series, at) => ({ name: series.name, type: "bar", barMaxWidth: 18, barGap: "15%", data: series.values, itemStyle: { color: paint.tones[at], borderRadius: [0, 3, 3, 0] } })),
  });
}

// Lines over steps.
function lines(data, paint) {
  return base(paint, {
    tooltip: { ...base(paint).tooltip, trigger: "axis", valueFormatter: digits },
    legend: data.series.length > 1 ? base(paint).legend : undefined,
    grid: { left: 8, right: 24, top: NAME_HEIGHT + (data.series.length > 1 ? legendHeight(data.series.map((series) => series.name), paint) : 10), bottom: 30, containLabel: true },
    xAxis: axis(paint, { type: "value", name: data.x, nameGap: 26, minInterval: 1, min: "dataMin", max: "dataMax", splitLine: { show: false } }),
    yAxis: upright(paint, { type: "value", name: data.y, scale: true }),
    series: data.series.map((series, at) => ({ name: series.name, type: "line", data: series.points, symbol: "circle", symbolSize: 5, lineStyle: { width: at ? 2 : 3, type: at ? "dashed" : "solid" }, itemStyle: { color: paint.tones[at] } })),
  });
}

export const options = { stacked, curve, gantt, fit, bars, lines };
