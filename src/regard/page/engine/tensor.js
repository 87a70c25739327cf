/* Matrices in float32, row by row; the weights of a packed run; linear layers.

   Weights in int8 become float32 when they are loaded: products of float32 with int8 took 1.5 times as long.
   Sums are in double precision, JavaScript's only one: rounding every sum to float32 took twice as long. */

export class Matrix {
  constructor(rows, columns, data = new Float32Array(rows * columns)) {
    this.rows = rows;
    this.columns = columns;
    this.data = data;
  }

  /** A view of one row. */
  row(index) {
    return this.data.subarray(index * this.columns, (index + 1) * this.columns);
  }

  /** Row i of the result is row indices[i] of this matrix. */
  select(indices) {
    const result = new Matrix(indices.length, this.columns);
    indices.forEach((index, row) => result.row(row).set(this.row(index)));
    return result;
  }

  /** Rows [first, end), as a view. */
  slice(first, end) {
    const data = this.data.subarray(first * this.columns, end * this.columns);
    return new Matrix(end - first, this.columns, data);
  }
}

/** first, first + 1, .., `length` numbers */
export function range(length, first = 0) {
  return Array.from({ length }, (_, i) => first + i);
}

/** The matrices side by side: row i is the concatenation of their rows i. */
export function concatenate(...matrices) {
  const columns = matrices.reduce((sum, matrix) => sum + matrix.columns, 0);
  const result = new Matrix(matrices[0].rows, columns);
  for (let row = 0; row < result.rows; row++) {
    let at = row * columns;
    for (const matrix of matrices) {
      result.data.set(matrix.row(row), at);
      at += matrix.columns;
    }
  }
  return result;
}

/** Columns [first, end) of each row, copied. */
export function selectColumns(matrix, first, end) {
  const result = new Matrix(matrix.rows, end - first);
  for (let row = 0; row < matrix.rows; row++) {
    result.row(row).set(matrix.row(row).subarray(first, end));
  }
  return result;
}

/** f(x) for each element, in place. */
export function mapInPlace(matrix, f) {
  const { data } = matrix;
  for (let i = 0; i < data.length; i++) data[i] = f(data[i]);
  return matrix;
}

export function relu(matrix) {
  return mapInPlace(matrix, (x) => (x < 0 ? 0 : x)); // NaN stays NaN
}

export function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

/** x += y */
export function addInPlace(x, y) {
  for (let i = 0; i < x.data.length; i++) x.data[i] += y.data[i];
  return x;
}

/** sum_i a[first + i] b[offset + i], i < length */
export function dot(a, first, b, offset, length) {
  let even = 0;
  let odd = 0;
  let i = 0;
  for (; i + 1 < length; i += 2) {
    even += a[first + i] * b[offset + i];
    odd += a[first + i + 1] * b[offset + i + 1];
  }
  return i < length ? even + odd + a[first + i] * b[offset + i] : even + odd;
}

/** x W^T, where W is [outputs inputs]: two rows and four outputs at a time, so that loads are shared. */
export function multiplyTransposed(x, weight) {
  const { rows, columns: inputs } = x;
  const outputs = weight.rows;
  const result = new Matrix(rows, outputs);
  const a = x.data;
  const w = weight.data;
  const y = result.data;
  const lastBlock = outputs - (outputs % 4);
  let row = 0;
  for (; row + 1 < rows; row += 2) {
    const first = row * inputs;
    const second = first + inputs;
    for (let output = 0; output < lastBlock; output += 4) {
      const w0 = output * inputs, w1 = w0 + inputs, w2 = w1 + inputs, w3 = w2 + inputs;
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      for (let i = 0; i < inputs; i++) {
        const p = a[first + i], q = a[second + i];
        const v0 = w[w0 + i], v1 = w[w1 + i], v2 = w[w2 + i], v3 = w[w3 + i];
        a0 += p * v0; a1 += p * v1; a2 += p * v2; a3 += p * v3;
        b0 += q * v0; b1 += q * v1; b2 += q * v2; b3 += q * v3;
      }
      const at = row * outputs + output;
      const next = at + outputs;
      y[at] = a0; y[at + 1] = a1; y[at + 2] = a2; y[at + 3] = a3;
      y[next] = b0; y[next + 1] = b1; y[next + 2] = b2; y[next + 3] = b3;
    }
  }
  for (; row < rows; row++) {
    const first = row * inputs;
    for (let output = 0; output < lastBlock; output += 4) {
      const w0 = output * inputs, w1 = w0 + inputs, w2 = w1 + inputs, w3 = w2 + inputs;
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
      for (let i = 0; i < inputs; i++) {
        const p = a[first + i];
        a0 += p * w[w0 + i]; a1 += p * w[w1 + i]; a2 += p * w[w2 + i]; a3 += p * w[w3 + i];
      }
      const at = row * outputs + output;
      y[at] = a0; y[at + 1] = a1; y[at + 2] = a2; y[at + 3] = a3;
    }
  }
  for (let output = lastBlock; output < outputs; output++) {
    for (row = 0; row < rows; row++) {
      y[row * outputs + output] = dot(a, row * inputs, w, output * inputs, inputs);
    }
  }
  return result;
}

/** x W^T + b */
export class Linear {
  constructor(weights, name) {
    this.weight = weights.matrix(`${name}.weight`);
    this.bias = weights.has(`${name}.bias`) ? weights.vector(`${name}.bias`) : null;
  }

  apply(x) {
    return addBias(multiplyTransposed(x, this.weight), this.bias);
  }
}

/** Adds the same vector, if there is one, to each row, in place. */
export function addBias(matrix, bias) {
  if (bias === null) return matrix;
  for (let row = 0; row < matrix.rows; row++) {
    const values = matrix.row(row);
    for (let i = 0; i < bias.length; i++) values[i] += bias[i];
  }
  return matrix;
}

/** The tensors of a packed run by name, as its manifest lists them. */
export class Weights {
  constructor(tensors, buffer, prefix = "", loaded = new Map()) {
    this.byName = tensors instanceof Map ? tensors : new Map(tensors.map((t) => [t.name, t]));
    this.buffer = buffer;
    this.prefix = prefix;
    this.loaded = loaded;
  }

  /** The tensors whose names start with `name` and a dot. */
  under(name) {
    return new Weights(this.byName, this.buffer, `${this.prefix}${name}.`, this.loaded);
  }

  has(name) {
    return this.byName.has(this.prefix + name);
  }

  vector(name) {
    return this.#load(this.prefix + name);
  }

  matrix(name) {
    const data = this.#load(this.prefix + name);
    return new Matrix(...this.byName.get(this.prefix + name).shape, data);
  }

  #load(name) {
    if (!this.loaded.has(name)) {
      const tensor = this.byName.get(name);
      if (tensor === undefined) throw new Error(`the packed model has no tensor "${name}"`);
      this.loaded.set(name, loadTensor(tensor, this.buffer));
    }
    return this.loaded.get(name);
  }
}

/** The numbers of a tensor; of an int8 matrix, scale times value, with a scale for each row. */
function loadTensor({ shape, dtype, offset, scales }, buffer) {
  const size = shape.reduce((product, length) => product * length, 1);
  if (dtype === "float32") return new Float32Array(buffer, offset, size);
  const values = new Int8Array(buffer, offset, size);
  const scaleOfRow = new Float32Array(buffer, scales, shape[0]);
  const result = new Float32Array(size);
  const columns = shape[1];
  for (let row = 0, i = 0; row < shape[0]; row++) {
    for (const end = i + columns; i < end; i++) result[i] = values[i] * scaleOfRow[row];
  }
  return result;
}

/** A mistake that the user can fix: its message is the answer. */
export class UserError extends Error {}
