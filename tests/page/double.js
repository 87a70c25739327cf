// A model that answers at once, for tests of the view: it "translates" by writing words backwards, and looks at one
// word per head. "#" in a text: an error. "slow": a second; "slow-NAME": only model NAME. "who": its name. "<n> tokens": n tokens and 32 heads, for tests of speed.

const WAIT = 1000;

function attention(layers, heads, queries, keys) {
  const data = new Float32Array(layers * heads * queries * keys);
  for (let row = 0; row < layers * heads * queries; row++) {
    const [query, head] = [row % queries, Math.floor(row / queries)];
    for (let key = 0; key < keys; key++) data[row * keys + key] = 0.2 / keys;
    data[row * keys + ((query + (head % heads)) % keys)] += 0.8;
  }
  return { shape: [layers, heads, queries, keys], data };
}

function translate({ model, text, target = null, decoding = { beam: 1 }, interventions = [], best }) {
  const many = /^(\d+) tokens$/.exec(text);
  const words = many ? Array.from({ length: Number(many[1]) - 1 }, (_, index) => `w${index}`) : text.split(/\s+/).filter(Boolean);
  const masked = new Set(interventions.filter(({ what }) => what === "mask").flatMap(({ keys }) => keys));
  const source = [...words, "<end>"];
  const produced = target !== null ? target.split(/\s+/) : words.map((word, index) => (masked.has(index) ? "?" : word === "who" ? model : many ? word : [...word].reverse().join("")));
  for (const one of interventions) {
    if (one.what === "force") produced[one.step] = one.token;
    if (one.what === "weights" && one.step !== null) produced[one.step] = `${source[Object.keys(one.weights)[0]]}*`;
    if (one.what === "ablate") produced[0] = "ablated";
  }
  const output = [...produced, "<end>"];
  const steps = output.map((token) => ({
    token,
    log_prob: Math.log(0.6),
    best: [token, "one", "two", "three"].slice(0, best).map((name, rank) => ({ token: name, log_prob: Math.log(0.6 / 2 ** rank) })),
  }));
  const [layers, heads] = many ? [1, 32] : [2, 4];
  const cross = attention(layers, heads, output.length, source.length);
  for (const one of interventions.filter(({ what, step }) => what === "weights" && step !== null)) {
    for (let head = 0; head < layers * heads; head++) {
      const start = (head * output.length + one.step) * source.length;
      cross.data.fill(0, start, start + source.length);
      for (const [key, weight] of Object.entries(one.weights)) cross.data[start + Number(key)] = weight;
    }
  }
  const tree = output.flatMap((token, step) => [
    { parent: step === 0 ? null : 2 * (step - 1), step, token, score: -0.5 * (step + 1), finished: token === "<end>", on_best: true },
    { parent: step === 0 ? null : 2 * (step - 1), step, token: "other", score: -0.9 * (step + 1), finished: false, on_best: false },
  ]);
  const score = output.length * Math.log(0.6);
  const self = many ? {} : { encoder: attention(layers, heads, source.length, source.length), decoder: attention(layers, heads, output.length, output.length) };
  return {
    text: produced.join(" "), source, target: output, score, normalised: score / output.length, alternatives: [], attention: { cross, ...self }, steps,
    tree: decoding.beam > 1 ? tree : null,
    milliseconds: { encode: 1, search: 2, attention: 1 },
  };
}

self.onmessage = ({ data: { id, load, request } }) => {
  if (load) return self.postMessage({ id, response: load.manifest.info });
  if (request.text.includes("#")) return self.postMessage({ id, error: "no words for #" });
  if (request.text.split(" ").some((word) => ["slow", `slow-${request.model}`].includes(word))) for (const end = Date.now() + WAIT; Date.now() < end; );
  self.postMessage({ id, response: translate(request) });
};
