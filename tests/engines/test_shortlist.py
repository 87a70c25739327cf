"""The lexical shortlist: IBM model 1, CTranslate2's file, and that CTranslate2 uses it."""

import json

import numpy as np
import pytest

import regard
from regard.engines import folders
from regard.engines.folders import VMAP
from regard.engines.shortlist import Shortlist, align, best_translations, build_shortlist
from regard.errors import UserError
from regard.export import export
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import EOS, TokenizerPair, WordTokenizer
from tests.export.conftest import make_run  # noqa: F401

# das Haus, das Buch, ein Buch: the example of Brown et al. and of every textbook.
DAS, HAUS, BUCH, EIN = range(4, 8)
THE, HOUSE, BOOK, A = range(4, 8)
PAIRS = [([DAS, HAUS], [THE, HOUSE]), ([DAS, BUCH], [THE, BOOK]), ([EIN, BUCH], [A, BOOK])]


def split(pairs=PAIRS):
    return [np.array(s) for s, _ in pairs], [np.array(t) for _, t in pairs]


def naive_model_1(pairs, iterations):
    probabilities = {(s, t): 1.0 for source, target in pairs for s in source for t in target}
    for _ in range(iterations):
        counts = dict.fromkeys(probabilities, 0.0)
        for source, target in pairs:
            for t in target:
                total = sum(probabilities[s, t] for s in source)
                for s in source:
                    counts[s, t] += probabilities[s, t] / total
        totals = {s: sum(c for (s2, _), c in counts.items() if s2 == s) for s, _ in counts}
        probabilities = {(s, t): c / totals[s] for (s, t), c in counts.items()}
    return probabilities


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_alignment_equals_a_naive_loop(iterations):
    pairs = [*PAIRS, ([DAS, DAS, EIN], [A]), ([HAUS], [HOUSE, A, A, BOOK])]
    types, probabilities = align(*split(pairs), iterations)
    expected = naive_model_1(pairs, iterations)
    assert {tuple(pair) for pair in types.tolist()} == expected.keys()
    for pair, probability in zip(types.tolist(), probabilities, strict=True):
        assert probability == pytest.approx(expected[tuple(pair)])


def test_the_textbook_example_is_aligned():
    best = best_translations(*align(*split(), 10), 1)
    assert best == {DAS: [THE], HAUS: [HOUSE], BUCH: [BOOK], EIN: [A]}


def words(*pieces: str) -> WordTokenizer:
    return WordTokenizer(pieces, (), False, False)


def test_candidates_and_file():
    source, target = words("das", "Haus", "Buch", "ein"), words("the", "house", "book", "a")
    encoded = EncodedPairs([[*s, EOS] for s, _ in PAIRS], [t for _, t in PAIRS])
    tokenizers = TokenizerPair(source, target, 9)
    shortlist = build_shortlist(encoded, tokenizers, candidates=2, frequent=2)
    assert shortlist.frequent == [THE, BOOK]
    assert shortlist.candidates[HAUS] == [HOUSE, THE]
    lines = shortlist.to_vmap(tokenizers).splitlines()
    assert lines[0] == "\tthe book"
    assert "Haus\thouse the" in lines
    joint = build_shortlist(encoded, TokenizerPair(target, target, 9), 1, 1)
    assert all(token in row for token, row in joint.candidates.items())  # it can be copied


def test_tokens_with_spaces_are_refused():
    tokenizers = TokenizerPair(words("a", " "), words("a"), 9)
    with pytest.raises(UserError, match=r"needs tokens without spaces, .* has ' ': leave"):
        Shortlist({}, []).to_vmap(tokenizers)


@pytest.fixture
def run(make_run):  # noqa: F811
    tokenizer = {"kind": "bpe", "vocab_size": 300, "joint": True}
    return make_run(model={"kind": "transformer", "d_model": 12, "d_ff": 17}, tokenizer=tokenizer)


def test_ctranslate2_generates_candidates_only(run, tmp_path):
    out = tmp_path / "out"
    assert export(run, "ctranslate2", out, shortlist=3)["shortlist"] == 3
    engine = f"ctranslate2:{out}"
    texts = ["<U> abc de", "<L> Hello you"]
    free, limited = (regard.load(run, engine=name) for name in ("ctranslate2", engine))
    assert not free.engine.has_shortlist
    assert limited.engine.has_shortlist
    # With a nonsensical shortlist there is nothing else to generate.
    (out / VMAP).write_text("\tZ Y\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"out is damaged: its files have changed"):
        regard.load(run, engine=engine)
    record = {"run": folders.fingerprint(run), "files": folders.hash_files(out)}
    (out / folders.RECORD).write_text(json.dumps(record), encoding="utf-8")
    outputs = regard.load(run, engine=engine).translate(texts, attention=False)
    assert {token for one in outputs for token in one.target} <= {"·Z", "·Y", "<unk>", "<end>"}
    assert outputs[0].target != free.translate(texts)[0].target


def test_scores_are_normalised_over_the_candidates(run, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.engines.shortlist.FREQUENT", 3)
    export(run, "ctranslate2", tmp_path / "out", shortlist=3)
    model = regard.load(run, engine=f"ctranslate2:{tmp_path / 'out'}")
    encoded = EncodedPairs([model.encode_source("<U> abc", "text")], [[]])
    options = {"beam_size": 1, "length_penalty": 0, "return_end_token": True, "return_scores": True}
    [[(ids, candidate_score)]] = model.engine.generate([encoded.source[0]], 5, options)
    assert candidate_score > model.engine.score(encoded.source[0], [ids])[0] + 1


def test_a_decoder_only_model_has_no_shortlist(make_run, tmp_path):  # noqa: F811
    tokenizer = {"kind": "bpe", "vocab_size": 300, "joint": True}
    run = make_run(model={"kind": "decoder-only", "d_model": 12, "d_ff": 17}, tokenizer=tokenizer)
    with pytest.raises(
        UserError, match="CTranslate2 has shortlists for encoder-decoder models only"
    ):
        export(run, "ctranslate2", tmp_path / "out", shortlist=3)
    assert not (tmp_path / "out").exists()


def test_a_shortlist_needs_the_training_data(make_run, tmp_path):  # noqa: F811
    run = make_run(model={"kind": "transformer", "d_model": 12, "d_ff": 17})
    path = run / "config.toml"
    text = path.read_text().split("[data]")
    rest = text[1].split("\n[", 1)[1]
    path.write_text(f'{text[0]}[data]\nkind = "pairs"\n\n[{rest}')
    with pytest.raises(UserError, match="pairs"):
        export(run, "ctranslate2", tmp_path / "out", shortlist=3)
