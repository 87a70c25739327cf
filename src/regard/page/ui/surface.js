// Two surfaces with the same few strokes: a canvas for the screen, SVG for saving. Views draw on either.

import { direction, svgElement } from "./dom.js";

export const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const MOST_PIXELS = 16e6;

export class CanvasSurface {
  constructor(canvas, width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, Math.sqrt(MOST_PIXELS / Math.max(1, width * height)));
    const size = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.imageSmoothingEnabled = false;
  }

  rect(x, y, width, height, { fill = null, stroke = null, lineWidth = 1, radius = 0, opacity = 1 }) {
    const context = this.context;
    context.globalAlpha = opacity;
    context.beginPath();
    if (radius > 0) context.roundRect(x, y, width, height, radius);
    else context.rect(x, y, width, height);
    if (fill !== null) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke !== null) {
      context.strokeStyle = stroke;
      context.lineWidth = lineWidth;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  // A curve that leaves and arrives horizontally.
  curve(x1, y1, x2, y2, { stroke, lineWidth = 1, opacity = 1 }) {
    const context = this.context;
    const middle = (x1 + x2) / 2;
    context.globalAlpha = opacity;
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    context.stroke();
    context.globalAlpha = 1;
  }

  text(x, y, string, { fill, size, align = "left", weight = 400, angle = 0 }) {
    const context = this.context;
    context.save();
    context.translate(x, y);
    context.rotate((angle * Math.PI) / 180);
    context.font = `${weight} ${size}px ${FONT}`;
    context.fillStyle = fill;
    context.direction = direction(string);
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(string, 0, 0);
    context.restore();
  }

  bitmap(canvas, x, y, width, height) {
    this.context.drawImage(canvas, x, y, width, height);
  }
}

export class SvgSurface {
  constructor(width, height, background, title) {
    this.root = svgElement("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height });
    this.root.append(svgElement("title", {}, title));
    this.rect(0, 0, width, height, { fill: background });
  }

  rect(x, y, width, height, { fill = null, stroke = null, lineWidth = 1, radius = 0, opacity = 1 }) {
    const style = { fill: fill ?? "none", stroke, "stroke-width": stroke && lineWidth, rx: radius || null, opacity: opacity < 1 ? round(opacity) : null };
    this.root.append(svgElement("rect", { x: round(x), y: round(y), width: round(width), height: round(height), ...style }));
  }

  curve(x1, y1, x2, y2, { stroke, lineWidth = 1, opacity = 1 }) {
    const middle = round((x1 + x2) / 2);
    const d = `M${round(x1)} ${round(y1)}C${middle} ${round(y1)} ${middle} ${round(y2)} ${round(x2)} ${round(y2)}`;
    this.root.append(svgElement("path", { d, fill: "none", stroke, "stroke-width": round(lineWidth), opacity: round(opacity) }));
  }

  text(x, y, string, { fill, size, align = "left", weight = 400, angle = 0 }) {
    const rightToLeft = direction(string) === "rtl";
    const anchor = { left: rightToLeft ? "end" : "start", center: "middle", right: rightToLeft ? "start" : "end" }[align];
    const turn = angle === 0 ? "" : ` rotate(${angle})`;
    this.root.append(
      svgElement("text", {
        transform: `translate(${round(x)} ${round(y)})${turn}`,
        fill,
        "font-family": FONT,
        "font-size": size,
        "font-weight": weight === 400 ? null : weight,
        "text-anchor": anchor,
        "dominant-baseline": "central",
        direction: rightToLeft ? "rtl" : null,
        "unicode-bidi": "isolate",
      }, string),
    );
  }

  bitmap(canvas, x, y, width, height) {
    const place = { x: round(x), y: round(y), width: round(width), height: round(height) };
    this.root.append(svgElement("image", { ...place, href: canvas.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" }));
  }

  toString() {
    return new XMLSerializer().serializeToString(this.root);
  }
}

function round(number) {
  return Math.round(number * 100) / 100;
}

let ruler = null;

export function textWidth(string, size, weight = 400) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(string).width;
}
