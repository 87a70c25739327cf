// Saving what is on the screen, as SVG and as PNG.

import { SvgSurface } from "./surface.js";
import { element } from "./dom.js";

const MARGIN = 24;

// One picture: a title above what the view draws.
export function drawSvg(view, layout, colours, title) {
  const [width, height] = [Math.ceil(layout.width) + 2 * MARGIN, Math.ceil(layout.height) + 2 * MARGIN + 34];
  const outer = new SvgSurface(width, height, colours.background, title);
  outer.text(MARGIN, MARGIN + 6, title, { fill: colours.text, size: 16, weight: 600 });
  const inner = new SvgSurface(layout.width, layout.height, "none", "");
  view.draw(inner, layout, colours);
  inner.root.setAttribute("x", MARGIN);
  inner.root.setAttribute("y", MARGIN + 34);
  inner.root.setAttribute("overflow", "visible");
  inner.root.firstChild.remove();
  outer.root.append(inner.root);
  return { text: outer.toString(), width, height };
}

export function saveSvg({ text }, name) {
  download(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
}

export async function savePng({ text, width, height }, name, scale = 2) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = element("canvas", { width: width * scale, height: height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    download(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), `${name}.png`);
  } finally {
    URL.revokeObjectURL(address);
  }
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
