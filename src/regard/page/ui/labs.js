// The tab of labs: shown only if the file has any.

import { direction, element } from "./dom.js";

// labs: [{name, title, claim}, ..]
export function mountLabs(root, labs) {
  root.replaceChildren(
    ...labs.map((lab) =>
      element("section", { class: "panel" }, element("h2", {}, lab.title ?? lab.name), element("p", { dir: direction(lab.claim ?? "") }, lab.claim ?? "")),
    ),
  );
}
