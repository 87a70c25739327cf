// The colours of the pictures: those of regard.diagrams, so that page and figures look alike.

const SCALE_ENDS = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01];
const LEVELS = 256;
const tables = new Map();

// Where the colour scale ends: at 1, 0.5, 0.2, .. as the weights need.
export function scaleEnd(largest) {
  if (largest > 1) return largest;
  return SCALE_ENDS.findLast((end) => end >= largest - 1e-6) ?? 1;
}

// 256 colours from the smallest to the largest weight.
export function colourTable(colours) {
  const key = colours.join();
  if (!tables.has(key)) tables.set(key, Array.from({ length: LEVELS }, (_, level) => interpolate(colours, level / (LEVELS - 1))));
  return tables.get(key);
}

export function colourOf(weight, end, table) {
  const level = Math.max(0, Math.min(LEVELS - 1, Math.round((weight / end) * (LEVELS - 1))));
  return toCss(table[level]);
}

function interpolate(colours, share) {
  const position = share * (colours.length - 1);
  const index = Math.min(Math.floor(position), colours.length - 2);
  const [from, to] = [parseColour(colours[index]), parseColour(colours[index + 1])];
  return from.map((value, channel) => Math.round(value + (position - index) * (to[channel] - value)));
}

function parseColour(text) {
  return [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));
}

export function toCss(colour) {
  return `#${colour.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// One pixel for each weight.
export function paintBitmap(weights, queries, keys, end, table) {
  const canvas = document.createElement("canvas");
  canvas.width = keys;
  canvas.height = queries;
  const context = canvas.getContext("2d");
  const image = context.createImageData(keys, queries);
  const packed = new Uint32Array(image.data.buffer);
  const pixels = table.map(([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  const factor = (LEVELS - 1) / end;
  for (let index = 0; index < weights.length; index++) {
    packed[index] = pixels[Math.max(0, Math.min(LEVELS - 1, Math.round(weights[index] * factor)))];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
