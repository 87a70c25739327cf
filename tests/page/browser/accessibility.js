// What a page must have for everybody: names, unique ids, contrast, headings in order, targets that can be hit.
() => {
  const problems = [];
  const visible = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && node.getClientRects().length > 0;
  const describe = (node) => `${node.tagName.toLowerCase()}.${node.className} "${node.textContent.slice(0, 30)}"`;

  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  if (new Set(ids).size !== ids.length) problems.push("an id is used twice");
  if (!document.documentElement.lang) problems.push("no language");
  if (document.querySelectorAll("main").length !== 1) problems.push("not one main");

  const nameOf = (node) =>
    node.getAttribute("aria-label") || [...(node.labels ?? [])].map(({ textContent }) => textContent).join("") || node.textContent || node.title;
  for (const node of document.querySelectorAll("button, select, input, textarea, a, [tabindex='0'], [role=application], [role=group], [role=radiogroup], section")) {
    if (visible(node) && !nameOf(node).trim()) problems.push(`no name: ${describe(node)}`);
  }
  for (const node of document.querySelectorAll("button, select, input, textarea")) {
    const { width, height } = (node.closest("label") ?? node).getBoundingClientRect();
    if (visible(node) && (width < 24 || height < 24)) problems.push(`too small: ${describe(node)}`);
  }

  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible).map(({ tagName }) => Number(tagName[1]));
  if (levels[0] !== 1 || levels.some((level, index) => index > 0 && level > levels[index - 1] + 1)) problems.push(`headings: ${levels}`);

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => ((value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.textContent.trim() || node.closest("script, style, option, .hidden, .skip, .busy") || !visible(node)) continue;
    const backgrounds = [];
    for (let above = node; above; above = above.parentElement) backgrounds.unshift(getComputedStyle(above).backgroundColor);
    const back = paint(backgrounds);
    const front = paint([...backgrounds, getComputedStyle(node).color]);
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(1)}: ${describe(node)}`);
  }
  return problems;
}
