// Asking again while a view is on the screen and there is something to wait for.

const PAUSE = 2000; // milliseconds

export class Poll {
  // ask() -> whether to ask again
  constructor(root, ask) {
    Object.assign(this, { root, ask, timer: null, round: 0 });
  }

  // At once, and then again and again; what was asked before counts no more.
  async start() {
    const round = ++this.round;
    clearTimeout(this.timer);
    const again = !this.isVisible() || (await this.ask(() => round !== this.round));
    if (again && round === this.round) this.timer = setTimeout(() => this.start(), PAUSE);
  }

  isVisible() {
    return this.root.checkVisibility() && document.visibilityState === "visible";
  }
}
