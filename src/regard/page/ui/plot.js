// Plots of labs: SVG from Python, with places for glyphs and colours, shown as an image only.

import { decodeBase64 } from "./client.js";

// Gzipped JSON in base64.
export async function unpack(text) {
  const stream = new Blob([decodeBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A plot in a theme, complete: {text, width, height}.
export function assemblePlot(plot, theme, glyphs, palette) {
  const svg = (plot.both ?? plot[theme]).replace(/@(\d+)@/g, (_, place) => palette[place]);
  const names = new Set([...svg.matchAll(/xlink:href="#([^"]+)"/g)].map(([, name]) => name));
  const outlines = [...names].filter((name) => name in glyphs).map((name) => `<path id="${name}" d="${glyphs[name]}" transform="scale(0.015625)"/>`);
  const [, width, height] = /viewBox="0 0 ([\d.]+) ([\d.]+)"/.exec(svg).map(Number);
  return { text: svg.replace("<defs>", `<defs>${outlines.join("")}`), width, height };
}

// An <img> of what was shown last. A picture inside it cannot run scripts, or load anything.
export class PlotImage {
  constructor(root) {
    this.root = root;
    this.address = null;
  }

  show({ text, width, height }, description) {
    const earlier = this.address;
    this.address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    this.root.addEventListener("load", () => earlier !== null && URL.revokeObjectURL(earlier), { once: true });
    Object.assign(this.root, { src: this.address, alt: description, width, height });
  }
}
