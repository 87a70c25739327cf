"""The engine ctranslate2: the outputs and scores of our own search, and clear errors."""

import importlib.util
import json
from pathlib import Path

import ctranslate2
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.engines import ENGINES, folders, parse_engine
from regard.engines.ctranslate2 import CTranslate2, Search
from regard.errors import NotFiniteError, UserError
from regard.evaluation import ablate
from regard.export import export
from regard.search import token_log_probs
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS, PAD
from regard.translation import Sampling
from tests.export.conftest import LLAMA, make_run  # noqa: F401

TEXTS = ["<U> acd de", "<L> Hello you", "<U> x", "<L> ACDEFGH ijk", "<U> ss tt uu"]
TABLES = {
    "transformer": {"kind": "transformer", "d_model": 12, "d_ff": 17},
    "decoder-only": LLAMA | {"tie_embeddings": False},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


@pytest.fixture(params=TABLES)
def run(request, make_run):  # noqa: F811
    tokenizer = {"kind": "characters", "joint": True}
    return make_run(model=TABLES[request.param], tokenizer=tokenizer)


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def outputs(translations) -> list[tuple[list[str], ...]]:
    return [(t.target, *(a.target for a in t.alternatives)) for t in translations]


def test_greedy_search_gives_our_outputs_scores_and_attention(run):
    ours = regard.load(run).translate(TEXTS)
    theirs = regard.load(run, engine="ctranslate2").translate(TEXTS)
    assert outputs(ours) == outputs(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert other.score == other.normalised == pytest.approx(one.score, abs=1e-4)
        assert one.text == other.text
        assert one.attention.keys() == other.attention.keys()
        for mechanism, weights in one.attention.items():
            torch.testing.assert_close(weights, other.attention[mechanism])


def test_beam_search_scores_its_outputs_as_we_do(run):
    """Its n-best lists are ranked by our normalised scores, and never beat what our own scoring says."""
    engine = regard.load(run, engine="ctranslate2")
    for one in engine.translate(TEXTS, beam=3, nbest=3):
        ranked = [one, *one.alternatives]
        assert [r.normalised for r in ranked] == sorted(
            (r.normalised for r in ranked), reverse=True
        )
        for each in ranked:
            length = len(each.target)
            assert each.normalised == pytest.approx(each.score / length, abs=1e-6)
            assert not {"<pad>", "<begin>"} & set(each.target)
    encoded = EncodedPairs(
        [engine.encode_source(text, "text") for text in TEXTS], [[]] * len(TEXTS)
    )
    best = [nbest[0] for nbest in engine.search(encoded, 3)]
    targets = [[i for i in one.ids if i != EOS] for one in best]
    log_probs = token_log_probs(engine.model, EncodedPairs(encoded.source, targets))
    for one, values in zip(best, log_probs, strict=True):
        assert one.score == pytest.approx(sum(values[: len(one.ids)]), abs=1e-4)


def test_outputs_do_not_depend_on_the_batch(run):
    engine = regard.load(run, engine="ctranslate2")
    for beam in (1, 3):
        together = engine.translate(TEXTS, beam=beam, attention=False)
        alone = engine.translate(TEXTS, beam=beam, batch_tokens=1, attention=False)
        assert outputs(together) == outputs(alone)


def test_each_text_has_its_own_length_limit(run):
    """A model that never generates EOS: every output reaches its limit, and still has no PAD or BOS."""
    engine = regard.load(run, engine="ctranslate2")
    texts = ["<U> a", "<U> abcd", "<L> abcdefgh"]
    never_ends = engine.engine.generate

    def generate(sources, limit, options):
        tokens = [["<end>"], *options.get("suppress_sequences", ())]
        return never_ends(sources, limit, options | {"suppress_sequences": tokens})

    engine.engine.generate = generate
    for beam in (1, 2):
        for one in engine.translate(texts, beam=beam, attention=False):
            assert len(one.target) == engine.max_output_length(len(one.source))
            assert "<end>" not in one.target


def test_batches_hold_similar_sources_and_every_row_once(run):
    engine = regard.load(run, engine="ctranslate2").engine
    sources = [[5] * length for length in (3, 9, 1, 3, 7, 9, 2)]
    for max_tokens in (1, 9, 12, 100):
        batches = list(engine.batches(sources, max_tokens))
        assert sorted(row for rows in batches for row in rows) == list(range(len(sources)))
        for rows in batches:
            lengths = [len(sources[row]) for row in rows]
            assert len(rows) == 1 or max(lengths) * len(rows) <= max_tokens
            if engine.class_name == "Generator":
                assert len(set(lengths)) == 1


def test_a_truncated_hypothesis_counts_only_where_none_has_ended():
    search = Search.__new__(Search)
    search.penalty = 1.0
    best, *others = search.rank([([7, 8, 9], -0.1), ([7, EOS], -0.3), ([EOS], -0.2)])
    assert best.ids == [EOS]
    assert [other.ids for other in others] == [[7, EOS]]
    assert others[0].score == pytest.approx(-0.6)
    assert [one.ids for one in search.rank([([7, 8], -0.5), ([7, 9], -0.25)])] == [[7, 9], [7, 8]]
    with pytest.raises(NotFiniteError):
        search.rank([([EOS], float("nan"))])


def test_special_tokens_are_searched_again_without_them():
    calls = []

    class Engine(CTranslate2):
        names = ("<pad>", "<begin>", "<end>", "<unk>", "a")
        batches = None

        def __init__(self):
            pass

        def generate(self, sources, limit, options):
            calls.append((limit, "suppress_sequences" in options))
            return [[([BOS, EOS] if len(calls) == 1 else [4, EOS], -1.0)] for _ in sources]

        def score(self, source, outputs):
            return [-3.0 for _ in outputs]

    [[best]] = Search(Engine(), 1, 0.0).search([[4, EOS]], [7])
    assert calls == [(7, False), (7, True)]
    assert best.ids == [4, EOS]
    assert best.score == -3.0  # its own, with PAD and BOS in the softmax
    assert PAD not in best.ids


def test_int8_is_the_engines_own(run):
    model = regard.load(run, engine="ctranslate2", int8=True)
    assert model.is_int8
    assert "int8 on cpu with CTranslate2" in repr(model)
    assert not regard.load(run, engine="ctranslate2").is_int8
    assert model.translate(TEXTS)[0].attention["cross"].isfinite().all()


def test_a_run_is_converted_once(run, cache, monkeypatch):
    regard.load(run, engine="ctranslate2")
    [folder] = cache.iterdir()
    monkeypatch.setattr(folders, "write_model", lambda *arguments: pytest.fail("again"))
    regard.load(run, engine="ctranslate2")
    assert folder == regard.load(run, engine="ctranslate2").engine.folder


@pytest.mark.parametrize("name", ["model.bin", "config.json", folders.RECORD])
def test_a_damaged_folder_is_converted_or_exported_again(run, cache, tmp_path, name):
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)

    expected = outputs(regard.load(run, engine="ctranslate2").translate(TEXTS))
    [folder] = cache.iterdir()
    before = (folder / name).read_bytes()
    flip(folder / name)
    assert outputs(regard.load(run, engine="ctranslate2").translate(TEXTS)) == expected
    assert (folder / name).read_bytes() == before
    export(run, "ctranslate2", tmp_path / "out")
    flip(tmp_path / "out" / name)
    message = "is damaged: its files have changed|is not a folder that `regard export|another run"
    with pytest.raises(UserError, match=message):
        regard.load(run, engine=f"ctranslate2:{tmp_path / 'out'}")


def test_a_cache_that_cannot_be_written_is_an_error(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        regard.load(run, engine="ctranslate2")


@pytest.mark.parametrize("int8", [False, True])
def test_an_exported_folder_is_an_engine_and_a_plain_model(run, tmp_path, cache, int8):
    out = tmp_path / "out"
    record = export(run, "ctranslate2", out, int8=int8)
    is_decoder_only = 'kind = "decoder-only"' in (run / "config.toml").read_text()
    assert record["class"] == ("Generator" if is_decoder_only else "Translator")
    model = regard.load(run, engine=f"ctranslate2:{out}")
    assert model.is_int8 == int8
    assert not cache.exists()
    if not int8:
        assert outputs(model.translate(TEXTS)) == outputs(regard.load(run).translate(TEXTS))
    if record["class"] == "Translator":
        plain = ctranslate2.Translator(str(out))
        text = regard.load(run).translate(["<U> acd"], attention=False)[0]
        [result] = plain.translate_batch([["<U>", *"acd"]], beam_size=1, max_decoding_length=30)
        if not int8:
            assert result.hypotheses[0] == [token for token in text.target if token != "<end>"]


def test_export_and_translate_on_the_command_line(run, tmp_path):
    out = tmp_path / "out"
    result = invoke("export", run, "--to", "ctranslate2", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert "model.bin" in json.loads(result.stdout)["files"]
    ours = invoke("translate", run, TEXTS[0])
    for engine in ("ctranslate2", f"ctranslate2:{out}"):
        assert invoke("translate", run, TEXTS[0], "--engine", engine).stdout == ours.stdout
    evaluated = invoke("evaluate", run, "--engine", "ctranslate2", "--beam", "1,2", "--json")
    assert [row["beam"] for row in json.loads(evaluated.stdout)["results"]] == [1, 2]
    printed = invoke("export", run, "--to", "ctranslate2", "--int8", "--out", tmp_path / "int8")
    assert "int8 weights; use it with --engine ctranslate2:" in printed.stdout


# --- errors ---------------------------------------------------------------------------------------


def test_names_of_engines():
    assert [parse_engine(name) for name in ENGINES] == [("pytorch", None), ("ctranslate2", None)]
    assert parse_engine("ctranslate2:a/b") == ("ctranslate2", Path("a/b"))
    for wrong in ("ctranslate", "pytorch:folder", ""):
        with pytest.raises(UserError, match="choose pytorch, ctranslate2 or ctranslate2:FOLDER"):
            parse_engine(wrong)
    with pytest.raises(UserError, match='Did you mean "ctranslate2"'):
        parse_engine("ctranslate")
    with pytest.raises(UserError, match="engine is a name, pytorch, ctranslate2: got None"):
        parse_engine(None)


def test_what_only_pytorch_can_do_is_refused(run):
    model = regard.load(run, engine="ctranslate2")
    with pytest.raises(
        UserError, match="the engine ctranslate2 has no sampling: use the engine py"
    ):
        model.translate(TEXTS, sample=Sampling())
    with pytest.raises(UserError, match="the engine ctranslate2 has no interventions"):
        model.translate(TEXTS, interventions=[{"what": "ablate", "layer": 0, "head": 0}])
    with pytest.raises(UserError, match="the engine ctranslate2 has no ablations"):
        ablate(model, [("<U> a", "A")], "heads")
    assert len(model.score([("<U> a", "A")])) == 1  # by the model


def test_a_gpu_is_refused(run, monkeypatch):
    monkeypatch.setattr("regard.loading.resolve_device", lambda name: "meta")
    with pytest.raises(UserError, match="the engine ctranslate2 runs on a CPU, not on meta"):
        regard.load(run, "meta", engine="ctranslate2")
    monkeypatch.undo()
    model = regard.load(run, engine="ctranslate2")
    monkeypatch.setattr("regard.api.resolve_device", lambda name: "cuda")
    with pytest.raises(UserError, match="the engine ctranslate2 runs on a CPU, not on cuda"):
        model.to("cuda")


def test_a_missing_package_is_one_error(run, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    missing = lambda name: None if name == "ctranslate2" else real(name)  # noqa: E731
    monkeypatch.setattr(folders, "find_spec", missing)
    for call in (
        lambda: regard.load(run, engine="ctranslate2"),
        lambda: export(run, "ctranslate2", tmp_path / "out"),
    ):
        with pytest.raises(UserError, match=r'pip install "regard\[ctranslate2\]"$'):
            call()
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_expressed_is_refused(make_run, tmp_path):  # noqa: F811
    run = make_run(model={"kind": "recurrent", "hidden_dim": 5, "embedding_dim": 3})
    for arguments in (
        ["translate", run, "<U> a", "--engine", "ctranslate2"],
        ["export", run, "--to", "ctranslate2", "--out", tmp_path / "out"],
    ):
        message = str(invoke(*arguments).exception)
        assert 'model.kind = "recurrent" (CTranslate2 has Transformers only)' in message
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_refused(run, make_run, tmp_path):  # noqa: F811
    other = make_run("other", model={"kind": "transformer", "d_model": 8})
    export(other, "ctranslate2", tmp_path / "out")
    with pytest.raises(UserError, match="out was exported from another run, or by another version"):
        regard.load(run, engine=f"ctranslate2:{tmp_path / 'out'}")
    with pytest.raises(
        UserError, match="run is not a folder that `regard export --to ctranslate2`"
    ):
        regard.load(run, engine=f"ctranslate2:{run}")


def test_an_engine_needs_a_run(tmp_path):
    (tmp_path / "a").write_text("a\n")
    files = [
        "--input",
        tmp_path / "a",
        "--reference",
        tmp_path / "a",
        "--hypotheses",
        tmp_path / "a",
    ]
    result = invoke("evaluate", *files, "--engine", "ctranslate2")
    assert "--engine needs a RUN to evaluate" in str(result.exception)
