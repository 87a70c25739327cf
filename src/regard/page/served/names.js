// A row of names to choose from, and the chosen one in the address: #run=mine

import { element } from "../ui/dom.js";

export class Names {
  constructor(key, names, choose) {
    Object.assign(this, { key, names, choose, chosen: names[0] });
    this.root = element("nav", { class: "lab-list" });
  }

  get fragment() {
    return new URLSearchParams({ [this.key]: this.chosen }).toString();
  }

  // Whether this fragment names one; what is not there becomes the first.
  restore(fragment) {
    const name = new URLSearchParams(fragment).get(this.key);
    if (name === null) return false;
    this.chosen = this.names.includes(name) ? name : this.names[0];
    return true;
  }

  render(label) {
    this.root.setAttribute("aria-label", label);
    const focused = this.root.contains(document.activeElement);
    this.root.replaceChildren(
      ...this.names.map((name) => element("button", { type: "button", "aria-current": name === this.chosen ? "true" : null, onclick: () => this.open(name) }, name)),
    );
    if (focused) this.root.querySelector("[aria-current]").focus({ preventScroll: true });
  }

  open(name) {
    this.chosen = name;
    this.choose();
  }
}
