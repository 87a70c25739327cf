// Beam search as a tree of the hypotheses that it kept, from left to right; the best output is highlighted.

import { formatToken } from "./dom.js";
import { textWidth } from "./surface.js";
import { formatNumber, t } from "./texts.js";

export const tree = {
  layout(nodes, width, unit) {
    const size = 14 * unit;
    const row = 40 * unit;
    const rows = assignRows(nodes);
    const labels = nodes.map((node) => formatToken(node.token, 14));
    const steps = Math.max(0, ...nodes.map(({ step }) => step)) + 1;
    const widths = new Array(steps).fill(46 * unit);
    nodes.forEach((node, index) => {
      widths[node.step] = Math.max(widths[node.step], textWidth(labels[index].text, size, 600) + 16 * unit);
    });
    const starts = [];
    widths.reduce((x, one, step) => ((starts[step] = x), x + one + 30 * unit), 2);
    const boxes = nodes.map((node, index) => ({
      x: starts[node.step],
      y: 24 * unit + rows[index] * row,
      width: textWidth(labels[index].text, size, 600) + 16 * unit,
      height: 24 * unit,
    }));
    return {
      ...{ nodes, labels, boxes, unit, size, starts },
      width: starts.at(-1) + widths.at(-1) + 20 * unit,
      height: 24 * unit + (Math.max(0, ...rows) + 1) * row + 12 * unit,
    };
  },

  draw(surface, layout, colours) {
    const { nodes, boxes, unit } = layout;
    layout.starts.forEach((x, step) => surface.text(x + 2, 9 * unit, String(step + 1), { fill: colours.quiet, size: 12 * unit }));
    nodes.forEach((node, index) => {
      if (node.parent === null) return;
      const [from, to] = [boxes[node.parent], boxes[index]];
      const style = node.on_best ? { stroke: colours.series[0], lineWidth: 2.4 * unit } : { stroke: colours.quiet, lineWidth: unit, opacity: 0.55 };
      surface.curve(from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2, style);
    });
    nodes.forEach((node, index) => drawNode(surface, layout, index, colours));
  },

  drawHover(surface, layout, { node = null }, colours) {
    for (let index = node; index !== null; index = layout.nodes[index].parent) {
      const { x, y, width, height } = layout.boxes[index];
      surface.rect(x, y, width, height, { stroke: colours.series[1], lineWidth: 2, radius: 6 });
    }
  },

  hit(layout, x, y) {
    const margin = 8;
    const node = layout.boxes.findIndex(
      (box) => x >= box.x - margin && x <= box.x + box.width + margin && y >= box.y - margin && y <= box.y + box.height + margin,
    );
    return node < 0 ? null : { query: layout.nodes[node].step, key: null, head: null, node };
  },
};

// The row of each node: a branch takes the first row below its parent that is free there.
function assignRows(nodes) {
  const better = (a, b) => nodes[b].on_best - nodes[a].on_best || nodes[b].score - nodes[a].score;
  const children = nodes.map(() => []);
  const roots = [];
  nodes.forEach((node, index) => (node.parent === null ? roots : children[node.parent]).push(index));
  const rows = new Array(nodes.length).fill(0);
  const taken = []; // by row, the set of its steps
  const placeBranch = (first, least) => {
    const branch = [first];
    while (children[branch.at(-1)].length > 0) branch.push(children[branch.at(-1)].sort(better)[0]);
    let row = least;
    const steps = [nodes[first].step - 1, ...branch.map((index) => nodes[index].step)]; // room for the curve, too
    while (steps.some((step) => taken[row]?.has(step))) row++;
    taken[row] = new Set([...(taken[row] ?? []), ...steps]);
    for (const index of branch) rows[index] = row;
    for (const index of branch) for (const other of children[index].slice(1)) placeBranch(other, row + 1);
  };
  for (const root of roots.sort(better)) placeBranch(root, 0);
  return rows;
}

function drawNode(surface, layout, index, colours) {
  const { nodes, boxes, labels, unit } = layout;
  const node = nodes[index];
  const { x, y, width, height } = boxes[index];
  const box = node.on_best ? { fill: colours.series[0] } : { fill: colours.background, stroke: colours.quiet };
  surface.rect(x, y, width, height, { ...box, radius: 6 });
  const ink = node.on_best ? colours.background : labels[index].dimmed ? colours.quiet : colours.text;
  surface.text(x + width / 2, y + height / 2, labels[index].text, { fill: ink, size: layout.size, weight: node.on_best ? 600 : 400, align: "center" });
  const finished = node.finished ? ` ${t("finished")}` : "";
  surface.text(x + 2 * unit, y + height + 8 * unit, `${formatNumber(node.score, 2)}${finished}`, { fill: colours.quiet, size: 11.5 * unit });
}

// The tokens from the root to a node.
export function pathTo(nodes, index) {
  const path = [];
  for (let node = index; node !== null; node = nodes[node].parent) path.unshift(nodes[node]);
  return path;
}
