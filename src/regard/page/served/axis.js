// An axis: from values to places, with round values to write beside it.

export function makeAxis(least, most, from, to, count) {
  const rough = (most - least) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(least / step - 1e-9);
  const last = Math.floor(most / step + 1e-9);
  return {
    at: (value) => from + ((value - least) / (most - least)) * (to - from),
    ticks: Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step),
    digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)),
  };
}

// A range with a margin; a single value gets one too.
export function widen(least, most) {
  const margin = 0.06 * (most - least || Math.abs(most) || 1);
  return [least - margin, most + margin];
}
