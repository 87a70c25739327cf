// Attention as lines between two columns of tokens: keys on the left, queries on the right.

import { textWidth } from "./surface.js";
import { t } from "./texts.js";

const MOST_LINES = 4000;
const SMALLEST = 0.02; // of weights that are drawn

export const lines = {
  layout(scene, width, unit) {
    const size = 15 * unit;
    const most = Math.max(scene.keys.length, scene.queries.length);
    const labelled = most <= 120;
    const row = labelled ? 29 * unit : Math.max(1, 700 / most);
    const widest = (labels) => (labelled ? Math.max(40, ...labels.map(({ text }) => textWidth(text, size, 600))) + 22 * unit : 4);
    const [left, right] = [widest(scene.keys), widest(scene.queries)];
    const middle = Math.min(Math.max(110 * unit, width - left - right), 460 * unit);
    const legend = scene.heads.length > 1 ? 30 * unit * Math.ceil(scene.heads.length / 8) : 0;
    const top = 26 * unit;
    const whole = left + middle + right;
    const spread = (count) => ((most - count) * row) / 2;
    return {
      ...{ scene, unit, size, labelled, row, left, right, middle, top, legend, segments: selectSegments(scene) },
      keyTop: top + spread(scene.keys.length),
      queryTop: top + spread(scene.queries.length),
      width: whole,
      height: top + most * row + legend + 8 * unit,
    };
  },

  draw(surface, layout, colours) {
    for (const segment of layout.segments) drawSegment(surface, layout, segment, colours);
    drawLabels(surface, layout, colours);
    drawLegend(surface, layout, colours);
  },

  // All lines of what is hovered, small ones included.
  drawHover(surface, layout, hover, colours) {
    const { scene } = layout;
    for (const [index, head] of scene.heads.entries()) {
      const add = (query, key) => {
        const weight = head.weights[query * scene.keys.length + key];
        if (weight > 0.005) drawSegment(surface, layout, { query, key, weight, head: index }, colours);
      };
      if (hover.query !== null) scene.keys.forEach((_, key) => add(hover.query, key));
      else if (hover.key !== null) scene.queries.forEach((_, query) => add(query, hover.key));
    }
    drawLabels(surface, layout, colours, hover);
    drawLegend(surface, layout, colours);
  },

  dimsBase: true,

  hit(layout, x, y) {
    const at = (top, count) => {
      const index = Math.floor((y - top) / layout.row);
      return index >= 0 && index < count ? index : null;
    };
    if (x < layout.left + layout.middle / 2) {
      const key = at(layout.keyTop, layout.scene.keys.length);
      return key === null ? null : { query: null, key, head: null };
    }
    const query = at(layout.queryTop, layout.scene.queries.length);
    return query === null ? null : { query, key: null, head: null };
  },
};

function selectSegments(scene) {
  const segments = [];
  const keys = scene.keys.length;
  const smallest = scene.queries.length * keys > 20000 ? 0.05 : SMALLEST;
  scene.heads.forEach(({ weights }, head) => {
    for (let place = 0; place < weights.length; place++) {
      if (weights[place] >= smallest) segments.push({ query: Math.floor(place / keys), key: place % keys, weight: weights[place], head });
    }
  });
  return segments.sort((a, b) => b.weight - a.weight).slice(0, MOST_LINES).reverse();
}

function drawSegment(surface, layout, { query, key, weight, head }, colours) {
  const many = layout.scene.heads.length > 1;
  const strength = Math.min(1, weight);
  surface.curve(
    layout.left,
    layout.keyTop + (key + 0.5) * layout.row,
    layout.left + layout.middle,
    layout.queryTop + (query + 0.5) * layout.row,
    {
      stroke: colours.series[many ? head % colours.series.length : 0],
      lineWidth: (0.6 + 6 * strength) * layout.unit * (many ? 0.7 : 1),
      opacity: 0.12 + 0.75 * strength,
    },
  );
}

function drawLabels(surface, layout, colours, hover = null) {
  const { scene, unit, row } = layout;
  if (!layout.labelled) return;
  const draw = (labels, x, top, align, chosen) =>
    labels.forEach((label, index) => {
      const fill = index === chosen ? colours.series[1] : label.dimmed ? colours.quiet : colours.text;
      surface.text(x, top + (index + 0.5) * row, label.text, { fill, size: layout.size, align, weight: index === chosen ? 600 : 400 });
    });
  draw(scene.keys, layout.left - 10 * unit, layout.keyTop, "right", hover?.key ?? null);
  draw(scene.queries, layout.left + layout.middle + 10 * unit, layout.queryTop, "left", hover?.query ?? null);
  const style = { fill: colours.quiet, size: 12.5 * unit };
  surface.text(layout.left - 10 * unit, 10 * unit, t(scene.mechanism === "decoder" ? "outputSoFar" : "source"), { ...style, align: "right" });
  surface.text(layout.left + layout.middle + 10 * unit, 10 * unit, t(scene.mechanism === "encoder" ? "source" : "output"), style);
}

function drawLegend(surface, layout, colours) {
  const { scene, unit } = layout;
  if (layout.legend === 0) return;
  const step = Math.max(44 * unit, layout.width / 8);
  scene.heads.forEach((head, index) => {
    const x = (index % 8) * step;
    const y = layout.height - layout.legend + (Math.floor(index / 8) + 0.6) * 26 * unit;
    surface.rect(x, y - 5 * unit, 14 * unit, 10 * unit, { fill: colours.series[index % colours.series.length], radius: 3 });
    surface.text(x + 20 * unit, y, String(head.number + 1), { fill: colours.quiet, size: 12.5 * unit });
  });
}
