// Attention as a heat map: a row for each query, a column for each key; one map, or one for each head.

import { colourOf, colourTable, paintBitmap } from "./colours.js";
import { textWidth } from "./surface.js";
import { t } from "./texts.js";

const MOST_CELLS = 6000; // drawn one by one; more become one bitmap
const bitmaps = new WeakMap();

export const heatmap = {
  layout(scene, width, unit, height) {
    const size = 14 * unit;
    const [queries, keys] = [scene.queries, scene.keys];
    const several = scene.heads.length > 1;
    const labelled = !several && Math.max(queries.length, keys.length) <= 80;
    const widest = (labels) => Math.max(0, ...labels.map(({ text }) => textWidth(text, size)));
    const left = labelled ? widest(queries) + 12 * unit : 0;
    const lean = labelled ? widest(keys) * 0.71 + 14 * unit : 0;
    const title = several ? 22 * unit : 0;
    const gap = several ? 16 * unit : 0;
    const least = several ? Math.max(150 * unit, Math.min(keys.length * 7, 220 * unit)) : 0;
    const columns = several ? Math.max(1, Math.min(scene.heads.length, Math.floor((width + gap) / (least + gap)))) : 1;
    const space = several ? (width - gap * (columns - 1)) / columns : width - left - lean * 0.6;
    const smallest = labelled ? 18 * unit : several ? 0.1 : 1;
    const largest = several ? 30 * unit : Math.min(46 * unit, Math.max(26 * unit, height / queries.length));
    const cell = Math.max(smallest, Math.min(space / keys.length, largest));
    const map = { width: cell * keys.length, height: cell * queries.length };
    const rows = Math.ceil(scene.heads.length / columns);
    const scale = 46 * unit;
    return {
      ...{ scene, unit, size, labelled, left, top: labelled ? lean : 0, title, gap, columns, cell, map, scale },
      width: Math.max(left + columns * (map.width + gap) - gap + (labelled ? lean * 0.6 : 0), 240 * unit),
      height: (labelled ? lean : 0) + rows * (map.height + title + gap) - gap + scale,
    };
  },

  draw(surface, layout, colours) {
    const { scene, unit, size, cell } = layout;
    const table = colourTable(colours.sequential);
    scene.heads.forEach((head, index) => {
      const { x, y } = origin(layout, index);
      if (layout.title > 0) {
        surface.text(x, y - layout.title / 2, t("headNumber", head.number + 1), { fill: colours.quiet, size: size * 0.93 });
      }
      drawCells(surface, layout, head, x, y, table, colours);
    });
    if (layout.labelled) {
      scene.queries.forEach((label, row) => {
        const style = { fill: label.dimmed ? colours.quiet : colours.text, size, align: "right" };
        surface.text(layout.left - 9 * unit, layout.top + (row + 0.5) * cell, label.text, style);
      });
      scene.keys.forEach((label, column) => {
        const style = { fill: label.dimmed ? colours.quiet : colours.text, size, angle: -45 };
        surface.text(layout.left + (column + 0.45) * cell, layout.top - 9 * unit, label.text, style);
      });
    }
    drawScale(surface, layout, table, colours);
  },

  // The row and the column of what is hovered, in every map.
  drawHover(surface, layout, hover, colours) {
    const { scene, map, cell } = layout;
    scene.heads.forEach((_, index) => {
      const { x, y } = origin(layout, index);
      const line = { stroke: colours.series[1], lineWidth: Math.max(1, Math.min(2, cell / 4)) };
      if (hover.query !== null) surface.rect(x, y + hover.query * cell, map.width, cell, line);
      if (hover.key !== null) surface.rect(x + hover.key * cell, y, cell, map.height, line);
      for (const [query, key] of hover.painted ?? []) {
        surface.rect(x + key * cell, y + query * cell, cell, cell, { fill: colours.series[1], opacity: 0.8, radius: 2 });
      }
    });
  },

  hit(layout, x, y) {
    for (let index = 0; index < layout.scene.heads.length; index++) {
      const start = origin(layout, index);
      const key = Math.floor((x - start.x) / layout.cell);
      const query = Math.floor((y - start.y) / layout.cell);
      const inside = (value, count) => value >= 0 && value < count;
      const [rows, columns] = [layout.scene.queries.length, layout.scene.keys.length];
      if (inside(key, columns) && inside(query, rows)) return { query, key, head: layout.scene.heads[index].number };
      if (!layout.labelled) continue;
      if (x < start.x && inside(query, rows)) return { query, key: null, head: null };
      if (y < start.y && inside(key, columns)) return { query: null, key, head: null };
    }
    return null;
  },
};

function origin(layout, index) {
  const column = index % layout.columns;
  const row = Math.floor(index / layout.columns);
  return {
    x: layout.left + column * (layout.map.width + layout.gap),
    y: layout.top + layout.title + row * (layout.map.height + layout.title + layout.gap),
  };
}

function drawCells(surface, layout, head, x, y, table, colours) {
  const { scene, cell, map } = layout;
  const keys = scene.keys.length;
  if (head.weights.length * scene.heads.length > MOST_CELLS) {
    surface.bitmap(bitmapOf(head, scene, colours), x, y, map.width, map.height);
    return;
  }
  const space = cell > 12 ? Math.max(1, cell * 0.05) : 0;
  const radius = cell > 12 ? 3 : 0;
  head.weights.forEach((weight, place) => {
    const [column, row] = [place % keys, Math.floor(place / keys)];
    const fill = colourOf(weight, scene.end, table);
    surface.rect(x + column * cell + space / 2, y + row * cell + space / 2, cell - space, cell - space, { fill, radius });
  });
}

function bitmapOf(head, scene, colours) {
  const key = colours.sequential.join();
  const known = bitmaps.get(head);
  if (known?.key === key) return known.canvas;
  const canvas = paintBitmap(head.weights, scene.queries.length, scene.keys.length, scene.end, colourTable(colours.sequential));
  bitmaps.set(head, { key, canvas });
  return canvas;
}

function drawScale(surface, layout, table, colours) {
  const { unit, height, left } = layout;
  const [width, thickness, parts] = [150 * unit, 9 * unit, 50];
  const y = height - 18 * unit;
  for (let part = 0; part < parts; part++) {
    const fill = colourOf(part / (parts - 1), 1, table);
    surface.rect(left + (part * width) / parts, y, width / parts + 0.6, thickness, { fill });
  }
  const style = { fill: colours.quiet, size: 12.5 * unit };
  surface.text(left, y - 9 * unit, t("weightScale"), style);
  surface.text(left + width + 8 * unit, y + thickness / 2, String(Number(layout.scene.end.toPrecision(3))), style);
}
