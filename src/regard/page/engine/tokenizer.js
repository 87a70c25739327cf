/* Text to ids and back, as in regard/text: characters, words, byte-level BPE.

   Python's strings are sequences of code points, so a character here is a code point. */

const PAD = 0;
export const BOS = 1;
export const EOS = 2;
export const UNK = 3;
export const SPECIAL_TOKENS = ["<pad>", "<begin>", "<end>", "<unk>"];

// Python's str.isspace and \s; \w is str.isalnum or an underscore.
const PYTHON_SPACE = "\\p{White_Space}\\x1c-\\x1f";
const PYTHON_WORD = "\\p{L}\\p{N}_";
const ALL_SPACE = new RegExp(`^[${PYTHON_SPACE}]*$`, "u");
const ALPHANUMERIC = /^[\p{L}\p{N}]/u;

/** Is there nothing but white space? */
export function isBlank(text) {
  return ALL_SPACE.test(text);
}

/** The vocabulary of one side. A subclass defines how text is split into pieces and joined again. */
class Tokenizer {
  constructor({ pieces, symbols, lower, strict }) {
    this.pieces = pieces;
    this.symbols = symbols;
    this.lowercase = lower;
    this.strict = strict;
    this.vocab = [...SPECIAL_TOKENS, ...symbols, ...pieces];
    this.firstPiece = SPECIAL_TOKENS.length + symbols.length;
    this.pieceToId = new Map(pieces.map((piece, index) => [piece, this.firstPiece + index]));
  }

  /** [the id of the leading task symbol, if any; the pieces of the rest] */
  parse(text) {
    const index = this.symbols.findIndex((s) => text === s || text.startsWith(`${s} `));
    const rest = index < 0 ? text : text.slice(this.symbols[index].length + 1);
    const pieces = this.tokenize(this.lowercase ? rest.toLowerCase() : rest);
    return [index < 0 ? [] : [SPECIAL_TOKENS.length + index], pieces];
  }

  /** Ids of a text, without BOS and EOS. */
  encode(text) {
    const [symbol, pieces] = this.parse(text);
    return [...symbol, ...pieces.map((piece) => this.pieceToId.get(piece) ?? UNK)];
  }

  /** The pieces of a text that are not in the vocabulary, without duplicates. */
  unknownPieces(text) {
    const pieces = this.parse(text)[1];
    return [...new Set(pieces.filter((piece) => !this.pieceToId.has(piece)))];
  }

  /** The single characters of the vocabulary, in order: what a strict tokenizer knows. */
  knownCharacters() {
    const single = this.pieces.filter((piece) => [...piece].length === 1 && !isBlank(piece));
    return single.sort((a, b) => a.codePointAt(0) - b.codePointAt(0)).join("");
  }

  /** Text of ids; BOS, EOS and padding are dropped, <unk> stays visible. */
  decode(ids) {
    const kept = ids.filter((id) => id !== PAD && id !== BOS && id !== EOS);
    const hasSymbol =
      kept.length > 0 && kept[0] >= SPECIAL_TOKENS.length && kept[0] < this.firstPiece;
    const rest = this.detokenize(kept.slice(hasSymbol ? 1 : 0).map((id) => this.vocab[id]));
    if (!hasSymbol) return rest;
    return rest ? `${this.vocab[kept[0]]} ${rest}` : this.vocab[kept[0]];
  }

  /** A readable string, as shown in diagrams. */
  idToToken(id) {
    return this.vocab[id];
  }

  idsToTokens(ids) {
    return ids.map((id) => this.idToToken(id));
  }

  /** The ids that have this readable string; a space before a punctuation mark does not show in it. */
  tokenToIds(token) {
    return this.vocab.flatMap((_, id) => (this.idToToken(id) === token ? [id] : []));
  }
}

class CharacterTokenizer extends Tokenizer {
  tokenize(text) {
    return [...text];
  }

  detokenize(pieces) {
    return pieces.join("");
  }
}

const SPACE_MARK = "␣";
const JOINER_MARK = "⌢";
const CLOSING = new Set(".,;:!?)]}»”%…");
const OPENING = new Set("([{«„“¿¡#$€£@");

/** A token is a word or a punctuation mark; one whose spacing is not the usual one is marked. */
class WordTokenizer extends Tokenizer {
  static piece = new RegExp(
    `([${PYTHON_SPACE}]*)(['’]?[${PYTHON_WORD}]+|[^${PYTHON_WORD}${PYTHON_SPACE}])`,
    "gu",
  );

  usualGap(left, right) {
    const isJoined = CLOSING.has(right) || OPENING.has(left) || "'’".includes(right[0]);
    return isJoined || [left, right].some((piece) => piece === "-" || piece === "/") ? "" : " ";
  }

  tokenize(text) {
    const pieces = [];
    let left = null;
    let end = 0;
    for (const match of text.matchAll(WordTokenizer.piece)) {
      let [, gap, piece] = match;
      if (left === null || (gap !== "" && gap !== " ")) {
        pieces.push(...gap); // other white space: one token per character
        gap = "";
      } else if (gap !== this.usualGap(left, piece)) {
        piece = (gap ? SPACE_MARK : JOINER_MARK) + piece;
      }
      if ((match[2][0] === SPACE_MARK || match[2][0] === JOINER_MARK) && piece === match[2]) {
        piece = (gap ? SPACE_MARK : JOINER_MARK) + piece; // escape a literal mark
      }
      pieces.push(piece);
      left = match[2];
      end = match.index + match[0].length;
    }
    return [...pieces, ...text.slice(end)];
  }

  detokenize(pieces) {
    let text = "";
    let left = null;
    for (let piece of pieces) {
      if (isBlank(piece)) {
        text += piece;
        left = null;
        continue;
      }
      let gap = "";
      if (piece[0] === SPACE_MARK || piece[0] === JOINER_MARK) {
        gap = piece[0] === SPACE_MARK ? " " : "";
        piece = piece.slice(1);
      } else if (left !== null) {
        gap = this.usualGap(left, piece);
      }
      text += gap + piece;
      left = piece;
    }
    return text;
  }
}

/** The 256 characters that stand for bytes in byte-level BPE: printable ones for themselves (GPT-2). */
function byteCharacters() {
  const isPrintable = (b) => (b > 32 && b < 127) || (b > 160 && b < 256 && b !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(isPrintable(b) ? b : next++));
}

const BYTE_TO_CHARACTER = byteCharacters();
const CHARACTER_TO_BYTE = new Map(BYTE_TO_CHARACTER.map((character, byte) => [character, byte]));

class BpeTokenizer extends Tokenizer {
  // GPT-2's split into words; numbers, punctuation and spaces apart.
  static word = new RegExp(
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+" +
      "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+",
    "gu",
  );

  constructor(record) {
    super(record);
    this.ranks = new Map(record.merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
    this.utf8 = { encoder: new TextEncoder(), decoder: new TextDecoder("utf-8", { ignoreBOM: true }) };
  }

  tokenize(text) {
    if (!text) return [];
    const words = ` ${text}`.match(BpeTokenizer.word) ?? [];
    return words.flatMap((word) => {
      const bytes = this.utf8.encoder.encode(word);
      return this.merge(Array.from(bytes, (byte) => BYTE_TO_CHARACTER[byte]));
    });
  }

  /** Merges the adjacent pair with the lowest rank, the first of equal ones, until there is none. */
  merge(pieces) {
    while (pieces.length > 1) {
      let best = Infinity;
      let at = -1;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = this.ranks.get(`${pieces[i]} ${pieces[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
    return pieces;
  }

  decodeBytes(pieces) {
    const bytes = pieces.flatMap((piece) => {
      const characters = [...piece];
      const isBytes = characters.every((c) => CHARACTER_TO_BYTE.has(c));
      return isBytes
        ? characters.map((c) => CHARACTER_TO_BYTE.get(c))
        : [...this.utf8.encoder.encode(piece)];
    });
    return this.utf8.decoder.decode(new Uint8Array(bytes));
  }

  detokenize(pieces) {
    const text = this.decodeBytes(pieces);
    return text.startsWith(" ") ? text.slice(1) : text;
  }

  /** A word's first token as it is, its further tokens after a dot. */
  idToToken(id) {
    if (id < this.firstPiece) return this.vocab[id];
    const text = this.decodeBytes([this.vocab[id]]);
    if (text.startsWith(" ")) return text.slice(1) || text;
    return ALPHANUMERIC.test(text) ? `·${text}` : text;
  }
}

export const TOKENIZERS = {
  characters: CharacterTokenizer,
  words: WordTokenizer,
  bpe: BpeTokenizer,
};

/** The tokenizers of source and target, one object if the vocabulary is joint. */
export class TokenizerPair {
  constructor(record) {
    const build = (side) => new TOKENIZERS[side.kind](side);
    this.joint = "joint" in record;
    this.source = build(record.joint ?? record.source);
    this.target = this.joint ? this.source : build(record.target);
    this.maxTokens = record.max_tokens;
    this.sourceEos = record.source_eos;
  }
}
