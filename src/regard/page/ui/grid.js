// The settings of a lab that were measured: which of them comes next when a slider moves.

// The point that has this value, and differs least from the point before in all other parameters.
export function nearestPoint(points, before, parameter, value) {
  const candidates = points.map((point, index) => ({ point, index })).filter(({ point }) => point[parameter] === value);
  const distance = ({ point }) => point.filter((one, index) => index !== parameter && one !== points[before][index]).length;
  return candidates.reduce((best, one) => (distance(one) < distance(best) ? one : best)).index;
}

// The parameters, other than the one that was moved, which differ between two points.
export function otherChanges(points, before, after, parameter) {
  return points[after].flatMap((value, index) => (index !== parameter && value !== points[before][index] ? [index] : []));
}

export function formatValue(value) {
  if (typeof value !== "number" || value === 0) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential().replace("e+", "e") : String(value);
}

// The fragment of a point: its values that differ from the defaults.
export function encodePoint(lab, point) {
  const fields = new URLSearchParams({ lab: lab.name });
  lab.parameters.forEach(({ name, values, default: usual }, index) => {
    if (lab.points[point][index] !== usual) fields.set(name, String(values[lab.points[point][index]]));
  });
  return fields.toString();
}

// The point of a fragment, or null for another lab. What was not measured becomes the default.
export function decodePoint(lab, fields) {
  if (fields.get("lab") !== lab.name) return null;
  const wanted = lab.parameters.map(({ name, values, default: usual }) => {
    const index = values.findIndex((value) => String(value) === fields.get(name));
    return index < 0 ? usual : index;
  });
  return Math.max(0, lab.points.findIndex((point) => point.every((value, index) => value === wanted[index])));
}
