// Elements of the page. Text enters the page only as text nodes, never as HTML.

export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svgElement(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

// Properties: functions are event listeners (onclick), true and false set or leave out an attribute.
function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function readJson(id) {
  const node = document.getElementById(id);
  return node === null ? null : JSON.parse(node.textContent);
}

// A list to choose from: options are [value, label] or [value, label, disabled].
export function setOptions(select, options, chosen) {
  const signature = JSON.stringify(options);
  if (select.dataset.options !== signature) {
    select.dataset.options = signature;
    select.replaceChildren(
      ...options.map(([value, label, disabled]) => element("option", { value, disabled: Boolean(disabled) }, label)),
    );
  }
  select.value = String(chosen);
}

// The direction of a text: of its first letter that has one.
export function direction(text) {
  const letter = /\p{Script=Hebrew}|\p{Script=Arabic}|\p{Script=Syriac}|\p{Script=Thaana}|\p{Script=Nko}|\p{L}/u.exec(text);
  return letter !== null && /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(letter[0])
    ? "rtl"
    : "ltr";
}

const SPECIAL = new Set(["<pad>", "<begin>", "<end>", "<unk>"]);
const SYMBOLS = { " ": "␣", "\n": "↵", "\t": "⇥" };

// How a token is displayed: visible, short, and dimmed if it is not content.
export function formatToken(token, longest = 18) {
  if (token === "") return { text: "∅", dimmed: true };
  let text = [...token].map((character) => SYMBOLS[character] ?? character.replace(/\p{Cc}|\p{Cs}|\p{Cn}/u, "\ufffd")).join("");
  const letters = [...text];
  if (letters.length > longest) text = letters.slice(0, longest - 1).join("") + "…";
  return { text, dimmed: SPECIAL.has(token) || token in SYMBOLS };
}
