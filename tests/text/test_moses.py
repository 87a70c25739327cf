"""Preprocessed text: the rule, by example and by published figures, and corpora to which it is applied."""

import builtins
import re
from functools import cache
from pathlib import Path

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus, moses

sacremoses = pytest.importorskip("sacremoses", reason="needs the extra `papers`")

RULE = {
    "en": {
        "A Man, and TWO dogs.": "a man , and two dogs .",
        "A man's T-shirt isn't red.": "a man 's t-shirt isn 't red .",
        "1,000 people; 3.5 miles...": "1,000 people ; 3.5 miles ...",
        "“R & D” <at> A[1]": '" r & d " < at > a [ 1 ]',
        "  Two\tspaces ": "two spaces",
        "": "",
    },
    "de": {
        "Ein Mädchen läuft über die STRAẞE.": "ein mädchen läuft über die straße .",
        "Der 25-jährige trägt ein blau-weißes Hemd!": "der 25-jährige trägt ein blau-weißes hemd !",
        "Auf dem Schild steht „Café“.": 'auf dem schild steht " café " .',
        "2 Männer – z. B. Musiker": "2 männer - z. b. musiker",
    },
    "fr": {
        "L'homme, qu'il voit, n'est pas là.": "l' homme , qu' il voit , n' est pas là .",
        "L’eau près d'une rue": "l' eau près d' une rue",
        "« Un chien » (noir) ?": '" un chien " ( noir ) ?',
        # As in the published file: no letter of a to z after the apostrophe.
        "Un coup d’œil": 'un coup d " œil',
        "Un coup d'œil": "un coup d' œil",
    },
}
CASES = [(language, text) for language, texts in RULE.items() for text in texts]

# Tokens in the files of Multi30k's task1/tok, as its README counts them.
PUBLISHED = {
    "train": {"en": 377_534, "de": 360_706, "fr": 409_845},
    "val": {"en": 13_308, "de": 12_828, "fr": 14_381},
    "test": {"en": 12_968, "de": 12_103, "fr": 13_988},
}

ROWS = [(f"Le chien n’est pas l'ami {n}.", f"The dog isn't “{n}” & co.") for n in range(40)]
# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("language", "text"), CASES)
def test_the_rule_by_example(language: str, text: str) -> None:
    assert moses.build_rule(language)(text) == RULE[language][text]


@pytest.mark.parametrize("language", ["cs", "de", "en", "fr"])
def test_text_without_apostrophes_stays_as_it_is_the_second_time(language: str) -> None:
    rule = moses.build_rule(language)
    for _, text in CASES:
        once = rule(text.replace("'", "").replace("’", ""))
        assert rule(once) == once


@pytest.mark.parametrize("language", ["cs", "de", "en", "fr"])
def test_text_that_skips_normalisation_would_not_change_by_it(language: str) -> None:
    normalizer = sacremoses.MosesPunctNormalizer(language, perl_parity=True)
    pieces = ["a", "é", "1", ".", ",", "-", "'", " ", "_", "œ"]
    texts = {a + b + c + d for a in pieces for b in pieces for c in pieces for d in pieces}
    skipped = [text for text in texts if moses.NORMALISED.fullmatch(text)]
    assert len(skipped) > 5000
    for text in skipped:
        assert normalizer.normalize(text) == text.strip()
    for text in ("a  b", "''", "a:", "a ;", "„a", "a’b", "1 %", "1\u00a02", "(a)", '",'):
        assert not moses.NORMALISED.fullmatch(text)


def test_multi30k_has_as_many_tokens_as_its_authors_published(monkeypatch) -> None:
    build_rule = moses.build_rule
    once = cache(lambda language: cache(build_rule(language)))  # English is the source of both
    monkeypatch.setattr(moses, "build_rule", once)
    for target in ("de", "fr"):
        data = presets.load(f"multi30k-paper-en-{target}").data
        try:
            splits = corpus.load(data).splits
        except UserError as error:
            pytest.skip(str(error))
        for split, counts in PUBLISHED.items():
            for side, language in enumerate(("en", target)):
                tokens = sum(len(pair[side].split()) for pair in splits[split])
                assert tokens == counts[language], (split, language)


# --- data -----------------------------------------------------------------------------------------


def make_data(folder: Path, **changes: object) -> config.FileData:
    for name, rows in (("train", ROWS), ("val", ROWS[:7]), ("test", ROWS[3:12])):
        lines = "".join("\t".join(row) + "\n" for row in rows)
        (folder / f"{name}.tsv").write_text(lines, "utf-8")
    files = {name: str(folder / f"{name}.tsv") for name in ("train", "val", "test")}
    options = {"preprocess": "moses", "languages": ("fr", "en"), **changes}
    return config.FileData.model_validate(files | options)


def test_a_corpus_is_preprocessed_when_it_is_loaded(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    loaded = corpus.load(data)
    assert loaded["train"][0] == ("le chien n' est pas l' ami 0 .", 'the dog isn \'t " 0 " & co .')
    assert corpus.load_split(data, "test") == loaded["test"]
    assert loaded["test"] == moses.preprocess_pairs(ROWS[3:12], data)
    assert corpus.load_split(data, "test", raw=True) == ROWS[3:12]
    plain = make_data(tmp_path, preprocess="none", languages=None)
    assert corpus.load(plain)["train"] == ROWS
    assert corpus.load(plain).checksums() != loaded.checksums()
    assert len(corpus.load(data.model_copy(update={"fraction": 0.5}))["train"]) == 20


def test_swapped_sides_keep_their_languages(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    swapped = corpus.load(make_data(tmp_path, swap=True))
    assert swapped["val"] == [(target, source) for source, target in corpus.load(data)["val"]]


def test_synthetic_pairs_are_taken_as_they_are(tmp_path: Path) -> None:
    made = ("un chat n' est pas là .", "a cat isn 't there .")
    (tmp_path / "made.tsv").write_text("\t".join(made) + "\n", "utf-8")
    data = make_data(tmp_path, synthetic=[{"file": str(tmp_path / "made.tsv")}])
    real = corpus.load(make_data(tmp_path))["train"]
    assert corpus.load(data)["train"] == [*real, made]


def test_a_language_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'name those .*as in data\.languages = \["en", "de"\]'):
        make_data(tmp_path, languages=None)
    with pytest.raises(ValueError, match=r'data\.preprocess, which is "none": leave it out'):
        make_data(tmp_path, preprocess="none")
    data = make_data(tmp_path, languages=("fra", "en"))
    with pytest.raises(UserError, match=r'no rules for the language "fra"\. Did you mean "fr"\?'):
        corpus.load(data)


def test_without_the_extra_a_sentence_says_so(tmp_path: Path, monkeypatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments, **options):
        if name.startswith("sacremoses"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    moses.build_rule.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=re.escape("pip install 'regard[papers]'")):
        corpus.load(make_data(tmp_path))
