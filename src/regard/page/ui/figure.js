// A picture on the screen: one canvas for the view, one above it for what is hovered, so that hovering redraws little.

import { element } from "./dom.js";
import { CanvasSurface } from "./surface.js";

const NOTHING = { query: null, key: null, head: null };

export class Figure {
  // events: hover(place), select(place), paint([[query, key], ..]), paintable() -> boolean
  constructor(events) {
    this.events = events;
    this.base = element("canvas", { "aria-hidden": "true" });
    this.above = element("canvas", { class: "above", "aria-hidden": "true" });
    this.stack = element("div", { class: "stack" }, this.base, this.above);
    this.root = element("div", { class: "figure", role: "application", tabindex: "0" }, this.stack);
    this.hover = NOTHING;
    this.painted = null;
    this.above.addEventListener("pointermove", (event) => this.onMove(event));
    this.above.addEventListener("pointerleave", () => this.events.hover(NOTHING));
    this.above.addEventListener("pointerdown", (event) => this.onDown(event));
    this.above.addEventListener("pointerup", (event) => this.onUp(event));
    this.above.addEventListener("pointercancel", () => (this.painted = null));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(view, layout, colours, label) {
    Object.assign(this, { view, layout, colours });
    this.root.setAttribute("aria-label", label);
    this.stack.dataset.grid = [layout.left, layout.top, layout.cell].map((value) => value ?? 0).join(" "); // for scripts
    view.draw(new CanvasSurface(this.base, layout.width, layout.height), layout, colours);
    this.highlight(this.isInside(this.hover) ? this.hover : NOTHING);
  }

  // Whether a place of the picture before is one of this picture, too.
  isInside({ query, key, node = null }) {
    const { nodes, scene } = this.layout;
    return nodes ? node !== null && node < nodes.length : query < scene.queries.length && key < scene.keys.length && node === null;
  }

  highlight(hover) {
    this.hover = hover;
    if (!this.layout) return;
    const surface = new CanvasSurface(this.above, this.layout.width, this.layout.height);
    const any = hover.query !== null || hover.key !== null || this.painted !== null;
    this.base.classList.toggle("dimmed", any && Boolean(this.view.dimsBase));
    if (any) this.view.drawHover(surface, this.layout, { ...hover, painted: this.painted }, this.colours);
  }

  placeOf(event) {
    return this.layout ? this.view.hit(this.layout, event.offsetX, event.offsetY) : null;
  }

  onDown(event) {
    const place = this.placeOf(event);
    if (place === null || !this.isCell(place) || !this.events.paintable()) return;
    this.above.setPointerCapture(event.pointerId);
    this.painted = [[place.query, place.key]];
    this.highlight(place);
  }

  onMove(event) {
    const place = this.placeOf(event) ?? NOTHING;
    if (this.painted !== null && this.isCell(place)) {
      this.painted = [...this.painted.filter(([query]) => query !== place.query), [place.query, place.key]];
    }
    this.events.hover(place);
  }

  onUp(event) {
    const [painted, place] = [this.painted, this.placeOf(event)];
    this.painted = null;
    if (painted !== null) this.events.paint(painted);
    else if (place !== null) this.events.select(place);
  }

  isCell({ query, key }) {
    return query !== null && key !== null;
  }

  onKey(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in steps && this.layout) {
      event.preventDefault();
      this.events.hover(this.moveBy(steps[event.key]));
    } else if (event.key === "Enter" && (this.hover.query !== null || this.hover.key !== null)) {
      event.preventDefault();
      if (this.isCell(this.hover) && this.events.paintable()) this.events.paint([[this.hover.query, this.hover.key]]);
      else this.events.select(this.hover);
    } else if (event.key === "Escape") this.events.hover(NOTHING);
  }

  moveBy([down, right]) {
    if (this.layout.nodes) {
      const count = this.layout.nodes.length;
      const node = ((this.hover.node ?? -1) + down + right + count) % count;
      return { query: this.layout.nodes[node].step, key: null, head: null, node };
    }
    const { queries, keys } = this.layout.scene;
    const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
    return {
      query: clamp((this.hover.query ?? (down > 0 ? -1 : 0)) + down, queries.length),
      key: clamp((this.hover.key ?? (right > 0 ? -1 : 0)) + right, keys.length),
      head: this.hover.head,
    };
  }
}
