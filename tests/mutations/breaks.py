"""The breaks: a sentence for what is wrong, the text to replace, and the tests that must notice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

ATTEND = "tests/attention/test_attend.py"
HEADS = "tests/attention/test_heads.py"
LONG = "tests/attention/test_long.py"
LATENT = "tests/attention/test_latent.py"
NORMALISE = "tests/attention/test_normalise.py"
POSITIONS = "tests/attention/test_positions.py"
DYNAMIC_NTK = "tests/attention/test_dynamic_ntk.py"
SCORES = "tests/attention/test_scores.py"
QKV = "tests/labs/test_qkv.py"
INVARIANTS = "tests/models/test_invariants.py"
DECODER_ONLY = "tests/models/test_decoder_only.py"
RECURRENT = "tests/models/test_recurrent.py"
DECODER_STATE = "tests/models/test_decoder_state.py"
EVICTION = "tests/models/test_eviction.py"
CACHE_BYTES = "tests/models/test_cache_bytes.py"
INTERVENE = "tests/models/test_intervene.py"
CONSTRAIN = "tests/search/test_constrain.py"
STATE_SPACE = "tests/models/test_state_space.py"
BEAM = "tests/search/test_beam.py"
GREEDY = "tests/search/test_greedy.py"
SAMPLE = "tests/search/test_sample.py"
OBJECTIVE = "tests/training/test_objective.py"
AVERAGE = "tests/training/test_average.py"
DISTRIBUTED = "tests/training/test_distributed.py"
SHARDING = "tests/training/test_sharding.py"
DEVICES = "tests/stories/test_devices.py"
BPE_DROPOUT = "tests/text/test_bpe_dropout.py"
BPE_DROPOUT_RUN = "tests/training/test_bpe_dropout.py"
STEP = "tests/training/test_step.py"
LOOP = "tests/training/test_loop.py"
RESUME = "tests/training/test_resume.py"
FILES = "tests/test_files.py"
ERRORS = "tests/test_errors.py"
PRETRAINED = "tests/models/test_pretrained.py"
RELEASED = "tests/released/test_released.py"
DOCUMENTS = "tests/test_documents.py"
CHECKSUMS = "tests/test_checksums.py"
WEIGHTS = "tests/models/test_weights.py"
TOKEN_CACHE = "tests/text/test_cache.py"
SIGNALS = "tests/test_signals.py"
STATISTICS = "tests/test_statistics.py"
BATCH = "tests/text/test_batch.py"
WINDOWS = "tests/text/test_windows.py"
RELATIVE_LAB = "tests/labs/test_relative.py"
ROTARY_LAB = "tests/labs/test_rotary.py"
PAGE_PARITY = "tests/page/test_parity.py"
PAGE_INTERVENTIONS = "tests/page/test_interventions.py"
PAGE_TOKENIZER = "tests/page/test_tokenizer.py"
PAGE_WORKER = "tests/page/test_worker.py"
PAGE_PACK = "tests/page/test_pack.py"
PAGE_SERVED = "tests/page/browser/served"
SERVE_API = "tests/serve/test_api.py"
SERVE_BATCHING = "tests/serve/test_batching.py"
SERVE_GUARD = "tests/serve/test_guard.py"
TERMINAL = "tests/test_terminal.py"
TABLES = "tests/test_tables.py"
OUTPUTS = "tests/stories/test_outputs.py"
PAGES = "tests/page/test_pages.py"
AUGMENT = "tests/test_augment.py"
SYNTHETIC = "tests/text/test_synthetic.py"
TRAIN_SYNTHETIC = "tests/training/test_synthetic.py"
ENSEMBLE = "tests/models/test_ensemble.py"
AGREEMENT = "tests/text/test_agreement.py"
ENSEMBLES = "tests/stories/test_ensembles.py"
MOSES = "tests/text/test_moses.py"
PAPERS = "tests/stories/test_papers.py"
DATASETS = "tests/text/test_datasets.py"
RAY = "tests/compare/test_ray.py"


@dataclass(frozen=True)
class Break:
    """One deliberate error: `old`, which occurs once in `file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, source: str) -> str:
        """The broken source."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {source.count(self.old)} times {self.old!r}"
            )
        return source.replace(self.old, self.new)


def in_file(file: str, *tests: str, breaks: dict[str, tuple[str, str]]) -> list[Break]:
    return [Break(name, file, old, new, tests) for name, (old, new) in breaks.items()]


BREAKS: list[Break] = [
    *in_file(
        "files.py",
        RAY,
        breaks={
            "ray: a file is not found where it was sent": (
                'return Path(parse_paths(os.environ.get(PATHS) or "{}").get(os.path.normpath(path), path))',
                "return path",
            ),
        },
    ),
    *in_file(
        "compare/transfer.py",
        RAY,
        breaks={
            "ray: a checkpoint is written before what it belongs to": (
                "dict(reversed(content.items()))",
                "content",
            ),
            "ray: all files are sent again": ("if stamps[name] != known.get(name):", "if True:"),
            "ray: a deleted checkpoint stays": ("if name not in snapshot.names:", "if False:"),
            "ray: locks and temporary files travel": (
                "if name.name != files.LOCK\n        and not",
                "if not",
            ),
        },
    ),
    *in_file(
        "training/distributed.py",
        DISTRIBUTED,
        breaks={
            "distributed: every process takes all rows": (
                "batch.rows[self.rank :: self.size]",
                "batch.rows",
            ),
            "distributed: processes take other numbers of rows": (
                "rows=rows + [dummy] * (most - len(rows))",
                "rows=rows",
            ),
            "distributed: gradients are not summed": (
                "        distributed.all_reduce(flat)\n",
                "",
            ),
            "distributed: all processes draw the same dropout": (
                "[seed, self.rank, step]",
                "[seed, step]",
            ),
            "distributed: a resumed run draws other dropout": (
                "torch.manual_seed(int(mixed[0]))",
                "torch.seed()",
            ),
            "distributed: every process tells of a mistake": (
                'return self.store.add(f"regard: {message}", 1) == 1',
                "return True",
            ),
            "distributed: a lost process is a bug": ('"gloo/" not in str(error)', "True"),
            "distributed: a bug is a lost process": ('"gloo/" not in str(error)', "False"),
        },
    ),
    *in_file(
        "training/sharding.py",
        DISTRIBUTED,
        breaks={
            "sharding: gradients are averaged": (
                "module.set_gradient_divide_factor(1.0)",
                "module.set_gradient_divide_factor(2.0)",
            ),
            "sharding: a resumed run begins with other weights": ("    tensor.copy_(whole)\n", ""),
        },
    ),
    *in_file(
        "training/sharding.py",
        SHARDING,
        breaks={
            "sharding: recurrent cells keep the weights of the first step": (
                "    keep_weights_apart(model)\n",
                "",
            ),
        },
    ),
    *in_file(
        "training/launch.py",
        DEVICES,
        breaks={
            "devices: a mistake is made again and again": (
                "failure.exitcode == MISTAKE or ",
                "",
            ),
            "devices: a restart begins anew": ('arguments = [*arguments, "--resume"]', "pass"),
            "devices: the process that lost another is named": (
                "failure.exitcode == LOST, failure.timestamp",
                "failure.timestamp",
            ),
        },
    ),
    *in_file(
        "cli/models.py",
        DEVICES,
        breaks={
            "devices: a process that is stopped for a restart says how to continue": (
                "if world.is_main and not distributed.has_launcher():",
                "if world.is_main:",
            ),
            "devices: nothing says how to continue": ("if code in STOPPED:", "if False:"),
        },
    ),
    *in_file(
        "compare/__init__.py",
        RAY,
        breaks={
            "ray: a worker imports PyTorch": (
                'needs no PyTorch.\n"""',
                'needs no PyTorch.\n"""\nimport torch',
            ),
        },
    ),
    *in_file(
        "compare/ray_cluster.py",
        RAY,
        breaks={
            "ray: runs on a GPU get a whole one": ("return self.per_gpu", "return 1"),
            "ray: runs wait for ever for CPUs": ("if self.threads > most:", "if False:"),
        },
    ),
    *in_file(
        "text/moses.py",
        MOSES,
        breaks={
            "moses: text is not lower-cased": ("text = text.lower()", "text = text"),
            "moses: apostrophes as in today's script": ("perl_parity=True", "perl_parity=False"),
            "moses: special characters are escaped": ("escape=False", "escape=True"),
            "moses: both sides have the source's language": (
                "data.language_pair[is_second]",
                "data.language_pair[data.swap]",
            ),
            "moses: swapped sides keep their languages": (" != data.swap", ""),
            "moses: double quotation marks of two apostrophes stay": ("(?![ '])", "(?![ ])"),
        },
    ),
    *in_file(
        "text/corpus.py",
        MOSES,
        PAPERS,
        breaks={
            "moses: raw text is preprocessed": (
                "if moses.is_preprocessed(data) and not raw:",
                "if moses.is_preprocessed(data):",
            ),
        },
    ),
    *in_file(
        "translator.py",
        PAPERS,
        breaks={
            "moses: typed text is not preprocessed": (
                'text = moses.preprocess(text, self.config.data, "source")',
                "text = str(text)",
            ),
        },
    ),
    *in_file(
        "evaluation/metrics.py",
        PAPERS,
        breaks={
            "metrics: BLEU on tokens tokenises again": (
                'BLEU(tokenize="none", force=True)',
                "BLEU()",
            ),
            "metrics: preprocessed text has BLEU of detokenised text": (
                "measure.is_on_tokens if on_tokens else measure.is_on_raw_text",
                "measure.is_on_raw_text",
            ),
        },
    ),
    *in_file(
        "text/datasets.py",
        DATASETS,
        breaks={
            "datasets: optional splits are part of a corpus": (
                "for split in dataset.all_splits\n        if split in splits\n",
                "for split in dataset.all_splits\n",
            ),
        },
    ),
    *in_file(
        "augment.py",
        AUGMENT,
        breaks={
            "augment: duplicates are kept": ("if digest in self.seen:", "if False:"),
            "augment: held-out texts are translated": (
                'return "held_out" if key in self.held_out else None',
                "return None",
            ),
            "augment: held-out outputs are kept": (
                'if key in self.held_out:\n            return "held_out"\n        if key ==',
                "if key ==",
            ),
            "augment: back-translation has the sides of forward translation": (
                "sides = (translated, text) if self.recipe.reverse",
                "sides = (text, translated) if self.recipe.reverse",
            ),
            "augment: samples depend on the windows": (
                "numbers = [number - 1 for number in sources]",
                "numbers = list(range(len(sources)))",
            ),
            "augment: half a window is kept after a crash": (
                "files.shorten(part, progress.bytes)",
                "pass",
            ),
            "augment: texts before the interruption may occur again": (
                "augmenter.skip(islice(iterator, progress.lines))",
                "list(islice(iterator, progress.lines))",
            ),
            "augment: another origin is continued": (
                'saved if record["origin"] == origin and is_whole else cls()',
                "saved if is_whole else cls()",
            ),
        },
    ),
    *in_file(
        "text/synthetic.py",
        SYNTHETIC,
        breaks={
            "synthetic: held-out sentences are trained on": (
                "if not sentences & {normalise(side) for side in pair}",
                "if pair",
            ),
            "synthetic: real pairs are not repeated": ("train * data.repeat", "list(train)"),
            "synthetic: distillation translates the targets": (
                "side = 1 if entry.reverse else 0",
                "side = 1",
            ),
        },
    ),
    *in_file(
        "training/synthetic.py",
        TRAIN_SYNTHETIC,
        breaks={
            "synthetic: the reverse model is not reversed": (
                '"swap": data.swap != entry.reverse',
                '"swap": data.swap',
            ),
            "synthetic: the number of pairs leaves out the repetitions": (
                "data.repeat * len(train)",
                "len(train)",
            ),
        },
    ),
    *in_file(
        "attention/attend.py",
        ATTEND,
        breaks={
            "attend: the mask is ignored": (
                'scores = scores.masked_fill(~mask, float("-inf"))',
                "scores = scores",
            ),
            "attend: the mask has the other polarity": ("masked_fill(~mask", "masked_fill(mask"),
            "attend: the fused kernel ignores the mask": (
                "mask.to(query.dtype).log() if bias is None",
                "None if bias is None",
            ),
            "attend: the fused kernel drops the bias where there is a mask": (
                'torch.where(mask, bias, float("-inf"))',
                "mask.to(query.dtype).log()",
            ),
        },
    ),
    *in_file(
        "attention/normalise.py",
        NORMALISE,
        breaks={
            "normalise: softmax over queries": (".softmax(-1)", ".softmax(-2)"),
            "normalise: softmax takes NaN for a masked score": (
                'all_masked = (scores == float("-inf")).all(-1, keepdim=True)\n    # A row',
                'all_masked = (~(scores > float("-inf"))).all(-1, keepdim=True)\n    # A row',
            ),
            "normalise: sparsemax keeps one score too few": (
                "support = (1 + rank * ordered > cumulative)",
                "support = (1 + rank * ordered > cumulative + 0.1)",
            ),
        },
    ),
    *in_file(
        "attention/normalise.py",
        QKV,
        breaks={
            "normalise: the straight-through gradient is removed": (
                "return hard + (soft - soft.detach())",
                "return hard",
            ),
            "normalise: the straight-through gradient has the other sign": (
                "return hard + (soft - soft.detach())",
                "return hard - (soft - soft.detach())",
            ),
        },
    ),
    *in_file(
        "attention/scores.py",
        SCORES,
        breaks={
            "score: scaled-dot is not scaled": (" / math.sqrt(query.shape[-1])", ""),
            "score: additive without tanh": ("torch.tanh(", "("),
            "score: bilinear ignores its matrix": ("self.linear(keys)", "keys"),
        },
    ),
    *in_file(
        "attention/masks.py",
        ATTEND,
        HEADS,
        breaks={
            "mask: causal mask hides the query's own position": (
                "None, :] <= query",
                "None, :] < query",
            ),
            "mask: the window is one key wider": (".abs() < window", ".abs() <= window"),
        },
    ),
    *in_file(
        "attention/masks.py",
        LONG,
        breaks={
            "mask rule: a part has the keys of a wider window": (
                "max(0, start - self.window + 1)",
                "max(0, start - self.window + 2)",
            ),
            "mask rule: padding is visible": (
                "None if self.visible is None else self.visible[:, None]",
                "None",
            ),
        },
    ),
    *in_file(
        "attention/flex.py",
        LONG,
        breaks={
            "flex: a block at the edge of the window is skipped": (
                "(first_query - last_key < mask.window)",
                "(first_query - last_key < mask.window - 1)",
            ),
            "flex: a block with later keys is not masked": (
                "(last_key - first_query <= mask.latest)",
                "(first_key - first_query <= mask.latest)",
            ),
            "flex: the gradient of far keys is left out": (
                "result[..., 0] = before.sum_to_size(result.shape[:-1])",
                "pass",
            ),
            "flex: the gradient of far later keys is left out": (
                "result[..., -1] = (-total - before).sum_to_size(result.shape[:-1])",
                "pass",
            ),
            "flex: the last key is found again behind it": (
                ".masked_fill(slots >= keys, FAR)",
                "",
            ),
            "flex: the earliest near keys are left out": (
                "(band.distances >= -reach)",
                "(band.distances > -reach)",
            ),
            "flex: the band has too few keys for the last query of a block": (
                "width = min(keys, BLOCK + reach + latest)",
                "width = min(keys, BLOCK + reach + latest - 1)",
            ),
            "flex: padding has gradients of its own": (
                "        key_ids = key_ids.masked_fill(~mask.visible, FAR)\n",
                "        pass\n",
            ),
        },
    ),
    *in_file(
        "attention/bias_rules.py",
        LONG,
        breaks={
            "bias rule: every query has the bias of the first": (
                "table[batch, head, query, distance",
                "table[batch, head, query * 0, distance",
            ),
            "bias rule: earlier keys are later": ("distance.abs()", "distance"),
        },
    ),
    *in_file(
        "attention/long.py",
        LONG,
        breaks={
            "long: an inherited rule stands for another bias": ("issubclass(rule, bias)", "True"),
        },
    ),
    *in_file(
        "attention/positions.py",
        POSITIONS,
        breaks={
            "position: ALiBi's sign is flipped": ("(-self.slopes", "(self.slopes"),
            "position: sinusoidal swaps sine and cosine": (
                "[angles.sin(), angles.cos()]",
                "[angles.cos(), angles.sin()]",
            ),
            "position: NTK equals linear": (
                "omega * factor ** -(torch.arange(pairs, device=omega.device) / max(pairs - 1, 1))",
                "omega / factor",
            ),
            "position: YaRN equals none": ("omega * (ramp + (1 - ramp) / factor)", "omega"),
            "position: YaRN does not scale the scores": (
                "(0.1 * math.log(factor) + 1) ** 2 if",
                "1.0 if",
            ),
            "position: relative distances have the other sign": (
                "key_position_ids[:, None, :] - query_position_ids[:, :, None]",
                "query_position_ids[:, :, None] - key_position_ids[:, None, :]",
            ),
            "position: relative distances are not clipped at the right place": (
                "distances.clamp(-limit, limit) + limit",
                "distances.clamp(1 - limit, limit - 1) + limit",
            ),
            "position: rotary rotates the other way": (
                "* omega).to(dtype)",
                "* -omega).to(dtype)",
            ),
        },
    ),
    *in_file(
        "attention/heads.py",
        HEADS,
        breaks={
            "heads: rotary is not applied to keys": (
                "return self.position.rotate(keys, position_ids), values",
                "return keys, values",
            ),
            "heads: rotary is not applied to queries": (
                "query = self.position.rotate(query, query_position_ids)",
                "",
            ),
            "heads: keys and values are swapped": (
                "keys, values = (split_heads(half, self.kv_heads) for half in halves)",
                "values, keys = (split_heads(half, self.kv_heads) for half in halves)",
            ),
            "heads: the window is ignored": ("if self.window is not None:", "if False:"),
            "heads: groups are interleaved, not consecutive": (
                "x.unflatten(1, (kv_heads, -1)).flatten(2, 3)",
                "x.unflatten(1, (-1, kv_heads)).transpose(1, 2).flatten(2, 3)",
            ),
            "heads: dropout of the weights in evaluation mode, too": (
                "self.dropout if self.training else 0.0",
                "self.dropout",
            ),
        },
    ),
    *in_file(
        "attention/positions.py",
        DYNAMIC_NTK,
        breaks={
            "position: dynamic NTK's factor is always 2": (
                "ntk(self.omega, 2 * n / original, original)",
                "ntk(self.omega, 2, original)",
            ),
            "position: dynamic NTK begins at the original length, not beyond it": (
                "takewhile(lambda n: n < keys, (original * 2**level",
                "takewhile(lambda n: n < keys, (original * 2**level - 1",
            ),
        },
    ),
    *in_file(
        "attention/heads.py",
        DYNAMIC_NTK,
        breaks={
            "heads: the length at hand is that of the cache, not the query's": (
                "is_longer = mask.sum(-1, keepdim=True) > length",
                "is_longer = torch.ones_like(mask[..., :1])",
            ),
            "heads: dynamic NTK rotates the queries only": (
                "rotate(query, query_position_ids), rotate(keys, key_position_ids)",
                "rotate(query, query_position_ids), keys",
            ),
        },
    ),
    *in_file(
        "attention/heads.py",
        INTERVENE,
        breaks={
            "heads: the normaliser sees the heads of a group as one": (
                "fold_groups(normalise(unfold_groups(scores, heads)), kv_heads)",
                "normalise(scores)",
            ),
        },
    ),
    *in_file(
        "models/intervene.py",
        INTERVENE,
        breaks={
            "intervene: in a beam, keys are counted by their place in the cache": (
                "queries, keys, lengths = positions.queries, positions.keys, positions.prefix_lengths",
                "queries, lengths = positions.queries, positions.prefix_lengths\n"
                "    keys = torch.arange(positions.keys.shape[1]).expand_as(positions.keys)",
            ),
            "intervene: target tokens of a decoder-only model count from the source": (
                "steps, is_source = queries - lengths[:, None]",
                "steps, is_source = queries",
            ),
            "intervene: later tokens can get weight": ("new = new * positions.mask", "pass"),
        },
    ),
    *in_file(
        "models/recurrent_decoder.py",
        INTERVENE,
        breaks={
            "recurrent: every step is the first": (
                "self.next_position_ids + tokens",
                "self.next_position_ids",
            ),
        },
    ),
    *in_file(
        "search/constrain.py",
        CONSTRAIN,
        breaks={
            "constrain: an output may end before a forced token": (
                "if step < last:",
                "if False:",
            ),
            "constrain: a forced token has the probability 1": (
                "log_probs[:, allowed])",
                "0 * log_probs[:, allowed])",
            ),
        },
    ),
    *in_file(
        "models/padding.py",
        INVARIANTS,
        breaks={
            "padding: it stays where it is": (
                "return torch.where(mask, mask.cumsum(1), padding) - 1",
                "return (torch.ones_like(mask).cumsum(1) + 0 * padding) - 1",
            ),
        },
    ),
    *in_file(
        "attention/latent.py",
        LATENT,
        breaks={
            "latent: no norm of the compressed vector": (
                "c = rms_norm(c, c.shape[-1:], self.scale.to(c.dtype), eps=1e-6)",
                "c = c * self.scale",
            ),
            "latent: the decoupled key is not rotated": (
                "self.position.rotate(rotary_key, position_ids)",
                "rotary_key",
            ),
            "latent: no correction of the scale when absorbed": (
                "math.sqrt(sum(self.cache_dims) / sum(self.query_dims))",
                "1.0",
            ),
        },
    ),
    *in_file(
        "models/recurrent.py",
        INVARIANTS,
        breaks={
            "recurrent: the sentence representation is the last state, padding or not": (
                "(mask.sum(1) - 1)[:, None, None]",
                "torch.full_like(mask.sum(1), mask.shape[1] - 1)[:, None, None]",
            ),
            "recurrent: padding is read outside training": (
                "if self.read_padding and self.training:",
                "if self.read_padding:",
            ),
        },
    ),
    *in_file(
        "models/recurrent.py",
        RECURRENT,
        breaks={
            "recurrent: without a bridge, the decoder starts from ReLU of the encoder's state": (
                "return RecurrentMemory(states, mask, initial), []",
                "return RecurrentMemory(states, mask, torch.relu(initial)), []",
            ),
            "recurrent: padding is masked where it should be read": (
                "mask = torch.ones_like(mask)",
                "pass",
            ),
        },
    ),
    *in_file(
        "text/windows.py",
        WINDOWS,
        breaks={
            "windows: an epoch takes the shards in their order": (
                "order = self.generator(epoch).permutation(len(self.data.paths))",
                "order = np.arange(len(self.data.paths))",
            ),
            "windows: every epoch is the first": (
                "epoch, part = divmod(window, self.num_windows)",
                "epoch, part = 0, window % self.num_windows",
            ),
            "windows: the first window stays on the device": (
                "if batch.window != self.window:",
                "if self.window < 0:",
            ),
        },
    ),
    *in_file(
        "text/shards.py",
        WINDOWS,
        breaks={
            "shards: a changed file is read": (
                "if verify and checksum(",
                "if not verify and checksum(",
            ),
            "shards: a pair over the limit is kept": (
                "len(t) <= limits[1] for s, t",
                "True for s, t",
            ),
        },
    ),
    *in_file(
        "text/shard_writer.py",
        WINDOWS,
        breaks={
            "shards: an interrupted run starts again": (
                "if not is_valid(path, tokenizers)]",
                "]",
            ),
        },
    ),
    *in_file(
        "text/wildcards.py",
        "tests/text/test_wildcards.py",
        breaks={
            "wildcards: files are paired by their order": (
                "if len({len(parts) for side in sides for parts in side}) > 1:",
                "if True:",
            ),
        },
    ),
    *in_file(
        "text/batch.py",
        BATCH,
        breaks={
            "batch: random batches are sorted by length": (
                "ordered = shuffled if self.random else self._sort",
                "ordered = self._sort",
            ),
            "batch: rows of equal length are not shuffled": (
                "target, source = self.lengths[rows].T",
                "target, source = self.lengths[rows := np.sort(rows)].T",
            ),
        },
    ),
    *in_file(
        "models/decoder_only.py",
        DECODER_ONLY,
        breaks={
            "decoder-only: a prefix LM reads its source forward only": (
                "None if self.is_prefix_lm else 0",
                "0",
            ),
        },
    ),
    *in_file(
        "models/transformer_base.py",
        DECODER_STATE,
        breaks={
            "state: reordering hypotheses leaves the mask": (
                "mask = mask.gather(1, beam_indices[..., None].expand(-1, -1, mask.shape[-1]))",
                "pass",
            ),
            "state: a step does not advance the position": (
                "self.next_position_ids = self.next_position_ids + 1",
                "pass",
            ),
        },
    ),
    *in_file(
        "models/transformer_base.py",
        EVICTION,
        breaks={
            "state: a ring has one slot too few": (
                "self.window * mask.shape[1] - cached",
                "(self.window - 1) * mask.shape[1] - cached",
            ),
            "state: a ring is widened in the order of its slots": (
                "order = order.remainder(cached)",
                "order = torch.arange(cached)",
            ),
            "state: a window keeps one key too few": (
                "len(cached_at) - (self.window - 1)",
                "len(cached_at) - (self.window - 2)",
            ),
        },
    ),
    *in_file(
        "models/mixers.py",
        EVICTION,
        breaks={
            "mixer: old keys are kept": (
                "self.attention.window if self.attention.score.pairwise else None",
                "None",
            ),
            "mixer: a score by index loses keys": (
                "self.attention.window if self.attention.score.pairwise else None",
                "self.attention.window",
            ),
        },
    ),
    *in_file(
        "models/decoder_only.py",
        EVICTION,
        breaks={
            "decoder-only: the first source tokens are kept, not the last": (
                "lengths[:, None] - keep + torch.arange",
                "0 * lengths[:, None] + torch.arange",
            ),
        },
    ),
    *in_file(
        "models/interface.py",
        CACHE_BYTES,
        breaks={
            "state: keys that are also values become two tensors": (
                "Once(lambda tensor: tensor.index_select(0, rows))",
                "lambda tensor: tensor.index_select(0, rows)",
            ),
        },
    ),
    *in_file(
        "models/kv_cache.py",
        DECODER_STATE,
        breaks={
            "cache: a new token overwrites the one before": (
                "start, end = self.length, self.length + keys.shape[2]",
                "start, end = self.length - 1, self.length - 1 + keys.shape[2]",
            ),
        },
    ),
    *in_file(
        "models/state_space.py",
        STATE_SPACE,
        breaks={
            "state space: padding changes the state": ("delta = delta * real[..., None]", "pass"),
            "state space: no skip connection": ("y + self.D.to(dtype) * u, last", "y, last"),
        },
    ),
    *in_file(
        "search/beam.py",
        BEAM,
        breaks={
            "beam: no length penalty": (
                "scores / self.lengths.double()[:, None] ** self.length_penalty",
                "scores",
            ),
            "beam: stops before the best hypothesis is certain": (
                "done = at_limit | moved.is_final(live.amax(1))[:, None]",
                "done = at_limit | (moved.finished_normalised[:, -1:] > NEG_INF)",
            ),
            "beam: hypotheses that ended stay live": (
                "live = self.scores.masked_fill(has_eos, NEG_INF)",
                "live = self.scores",
            ),
            "beam: the state is not reordered": (
                "else decoder.reorder(beam_indices)",
                "else decoder",
            ),
            "beam: the worst finished hypothesis ranks first": (
                "ranked.sort(descending=True, stable=True)",
                "ranked.sort(descending=False, stable=True)",
            ),
        },
    ),
    *in_file(
        "search/step.py",
        GREEDY,
        BEAM,
        breaks={
            "search: padding may be generated": (
                'log_probs[:, PAD] = log_probs[:, BOS] = float("-inf")',
                'log_probs[:, BOS] = float("-inf")',
            ),
        },
    ),
    *in_file(
        "search/generate.py",
        GREEDY,
        breaks={
            "search: tokens after EOS are kept": (
                "torch.where(self.is_active[:, None], tokens, PAD)",
                "tokens",
            ),
            "search: the maximum length is exceeded by one": (
                "(lengths < self.max_lengths)",
                "(self.lengths < self.max_lengths)",
            ),
        },
    ),
    *in_file(
        "search/sample.py",
        SAMPLE,
        breaks={
            "sample: the temperature is ignored": (".double() / self.temperature", ".double()"),
            "sample: top-p keeps one token too few": (
                "probs.cumsum(-1) - probs >= top_p",
                "probs.cumsum(-1) >= top_p",
            ),
            "sample: top-k keeps one token too many": ("ranks >= top_k", "ranks > top_k"),
        },
    ),
    *in_file(
        "training/objective.py",
        OBJECTIVE,
        breaks={
            "loss: padding counts": (
                "is_token = labels != PAD",
                "is_token = torch.ones_like(labels, dtype=torch.bool)",
            ),
            "loss: label smoothing spares the label": ("smoothing - 1)", "-1.0)"),
            "r-drop: the divergence is counted once, not once a pass": (
                "torch.cat([kl_first, kl_second])",
                "torch.cat([kl_first, 0 * kl_second])",
            ),
            "r-drop: the gradient ignores the other pass": (
                "ratio.add_(1 - kl_first).mul_(first).sub_(second)",
                "ratio.add_(-kl_first).mul_(first)",
            ),
            "r-drop: a chunk has the rows of one pass": (
                "(x[:, rows].flatten(0, 1) for x in by_pass)",
                "(x.flatten(0, 1)[passes * start :][: passes * chunk_rows] for x in by_pass)",
            ),
            "loss: the gradient lacks the label": (
                "probs.scatter_add_(1, chunk_labels, label_part)",
                "probs",
            ),
        },
    ),
    *in_file(
        "text/bpe_dropout.py",
        BPE_DROPOUT,
        breaks={
            "bpe-dropout: the last of the best pairs is merged": (
                "at = candidates.argmin(1)",
                "at = candidates.shape[1] - 1 - candidates[:, ::-1].argmin(1)",
            ),
            "bpe-dropout: the pair before a merged one keeps its rank": (
                "for left in (at - 1, at):",
                "for left in (at,):",
            ),
            "bpe-dropout: validation's segmentation has dropout": (
                "probability[repeats.cumsum() - repeats] = 0.0",
                "pass",
            ),
            "bpe-dropout: every epoch has the same segmentations": (
                "side.draw(self.generator(number, stream))",
                "side.draw(self.generator(0, stream))",
            ),
            "bpe-dropout: only the side that is too long loses its dropout": (
                "too_long = np.any([side.lengths(rows) > limit for side, rows, limit in by_side], axis=0)",
                "too_long = by_side[0][0].lengths(drawn[0]) > self.limits[0]",
            ),
            "bpe-dropout: the longest epoch does not fit": (
                "np.maximum.reduceat(self.sizes",
                "np.minimum.reduceat(self.sizes",
            ),
        },
    ),
    *in_file(
        "text/batch.py",
        BPE_DROPOUT,
        breaks={
            "batch: a pair of another epoch exceeds its bucket": (
                "bucket_of = np.maximum(bucket_of, np.searchsorted(longest, side))",
                "pass",
            ),
            "batch: other ids are in other memory": (
                "tensor[: len(array)].copy_(torch.from_numpy(array))",
                "tensor.set_(torch.from_numpy(array))",
            ),
        },
    ),
    *in_file(
        "training/loop.py",
        BPE_DROPOUT_RUN,
        breaks={
            "bpe-dropout: the device keeps the first epoch": (
                "self.train_step.data.update(data)",
                "pass",
            ),
        },
    ),
    *in_file(
        "training/snapshots.py",
        AVERAGE,
        breaks={
            "average: the sum is not divided": ("(total[name] / len(steps))", "total[name]"),
            "average: weights that the last checkpoint needs are deleted": (
                "kept = {path, *(path_of(folder, step) for step in earlier)}",
                "kept = {path, *(path_of(folder, step) for step in earlier[1:])}",
            ),
            "average: the files of a finished run stay": ("files.remove(path)", "pass"),
        },
    ),
    *in_file(
        "training/average.py",
        AVERAGE,
        breaks={
            "average: a worse one is saved": (
                "    if gain >= 0:\n        record",
                "    if True:\n        record",
            ),
            "average: one that is as good is not saved": (
                "    if gain >= 0:\n        record",
                "    if gain > 0:\n        record",
            ),
        },
    ),
    *in_file(
        "training/checkpoint.py",
        AVERAGE,
        breaks={
            "average: damaged weights are noticed at the end only": (
                'check_snapshots(folder, record["averaged_steps"], train_step)',
                "pass",
            ),
        },
    ),
    *in_file(
        "training/warm_start.py",
        BPE_DROPOUT_RUN,
        breaks={
            "bpe-dropout: it counts as a part of a reused vocabulary": (
                'vocabulary_keys - {"dropout"}',
                "vocabulary_keys",
            ),
        },
    ),
    *in_file(
        "training/step.py",
        STEP,
        LOOP,
        breaks={
            "step: gradients are not clipped": (
                "clip_grad_norm_(self.parameters, self.settings.grad_clip)",
                "pass",
            ),
            "step: the average moves the wrong way": (
                "foreach_sub(values, averages)",
                "foreach_sub(averages, values)",
            ),
            "step: weight decay on biases and norms": (
                'groups.append({"params": others, "weight_decay": 0.0})',
                'groups.append({"params": others, "weight_decay": settings.weight_decay})',
            ),
        },
    ),
    *in_file(
        "training/step.py",
        STEP,
        breaks={
            "step: gradients keep strides that AdamW ignores": (
                " and tensor.stride() == other.stride()",
                "",
            ),
            "step: accumulated batches are not weighted by their tokens": (
                "add_gradients(self.parameters, gradients, tokens)",
                "add_gradients(self.parameters, gradients, torch.ones_like(tokens))",
            ),
        },
    ),
    *in_file(
        "files.py",
        FILES,
        breaks={
            "files: a lock excludes nobody": ("acquire(file.fileno(), wait)", "pass"),
            "files: a failed append leaves half a line": ("file.truncate(length)", "pass"),
            "files: closing a lock on a full disk fails": (
                'on_error.enter_context(path.open("ab", buffering=0))',
                'on_error.enter_context(path.open("ab"))',
            ),
            "files: a failed output replaces the old one": (
                "except KeyboardInterrupt:\n            os.replace(part, path)",
                "except BaseException:\n            os.replace(part, path)",
            ),
            "files: temporary folders of killed processes stay": (
                "inside = temporary / LOCK if temporary.is_dir() else temporary",
                "inside = temporary",
            ),
        },
    ),
    *in_file(
        "signals.py",
        SIGNALS,
        breaks={
            "signals: an exception in the middle of an import": (
                "(self.received is None and is_importing(frame)) or ",
                "",
            ),
            "signals: a signal in a destructor is lost": (
                "threading.Timer(0.1, os.kill, (os.getpid(), number)).start()",
                "pass",
            ),
        },
    ),
    *in_file(
        "training/run.py",
        RESUME,
        breaks={
            "resume: a finished run is locked, though its folder may be read-only": (
                "nullcontext() if resume and is_finished(folder) else files.lock(folder)",
                "files.lock(folder)",
            ),
        },
    ),
    *in_file(
        "documents.py",
        DOCUMENTS,
        breaks={
            "json: NaN is written": (
                '"allow_nan": False} | options',
                '"allow_nan": True} | options',
            ),
            "json: a half-written line in the middle is left out": (
                "if number > len(lines):",
                "if True:",
            ),
            "json: nesting has no limit": ("if depth > MAX_DEPTH:", "if False:"),
        },
    ),
    *in_file(
        "models/weights.py",
        WEIGHTS,
        breaks={
            "weights: the checksum is not compared": (
                "if saved is not None and saved != hash_content(tensors, record, metadata):",
                "if False:",
            ),
            "weights: the checksum covers no names": (
                "[names, *facts, checksum",
                "[*facts, checksum",
            ),
            "weights: NaN is loaded": ("if not bool(tensor.isfinite().all()):", "if False:"),
        },
    ),
    *in_file(
        "checksums.py",
        CHECKSUMS,
        breaks={
            "run: another tokenizer is not noticed": (
                "if hash_file(path) != recorded[name]:",
                "if 0:",
            ),
        },
    ),
    *in_file(
        "text/cache.py",
        TOKEN_CACHE,
        breaks={
            "cache: damaged ids are used": (
                "or hash_content(count, content) != checksum",
                "",
            ),
        },
    ),
    *in_file(
        "training/device.py",
        RESUME,
        breaks={
            "resume: the random generator is not restored": (
                'torch.set_rng_state(states["cpu"])',
                "pass",
            ),
        },
    ),
    *in_file(
        "training/checkpoint.py",
        RESUME,
        breaks={
            "resume: the loss since the last validation starts again": (
                'train_step.loss_steps = record["loss_steps"]',
                "pass",
            ),
            "resume: damaged optimizer tensors are not noticed": (
                "check_tensors(path, tensors, collect_tensors(train_step))",
                "pass",
            ),
            "resume: the average of the weights starts again": (
                'return {"model": train_step.model, "ema": train_step.ema_model}',
                'return {"model": train_step.model}',
            ),
        },
    ),
    *in_file(
        "training/loop.py",
        LOOP,
        RESUME,
        breaks={
            "resume: every epoch has the same order": (
                "self.batches = self.sampler.epoch(epoch)",
                "self.batches = self.sampler.epoch(0)",
            ),
            "loop: the last weights are saved, not the best": (
                "        if is_best:\n            self.writer",
                "        if True:\n            self.writer",
            ),
        },
    ),
    *in_file(
        "statistics.py",
        STATISTICS,
        breaks={
            "statistics: Welch's degrees of freedom are those of equal variances": (
                "degrees_of_freedom = 1 / (part**2 / (len(one) - 1) + (1 - part) ** 2 / (len(other) - 1))",
                "degrees_of_freedom = len(one) + len(other) - 2 + 0 * part",
            ),
        },
    ),
    *in_file(
        "text/batch.py",
        BATCH,
        breaks={
            "batch: labels are the inputs, not shifted by one": (
                "torch.cat([bos, target[:, :-1]], dim=1)",
                "target",
            ),
            "batch: a batch may exceed its budget by one row": (
                "np.arange(1, len(longest) + 1) <=",
                "np.arange(len(longest)) <=",
            ),
        },
    ),
    *in_file(
        "page/engine/positions.js",
        PAGE_PARITY,
        breaks={
            "page: yarn leaves the scores unscaled": (
                'scaling === "yarn" ?',
                'scaling === "yam" ?',
            ),
            "page: dynamic NTK one key late": (
                "keys <= this.originalLength",
                "keys <= this.originalLength + 1",
            ),
            "page: linear scaling multiplies": ("value / factor),", "value * factor),"),
            "page: relative distances are reversed": (
                "keyPosition - row.position",
                "row.position - keyPosition",
            ),
        },
    ),
    *in_file(
        "page/engine/scores.js",
        PAGE_PARITY,
        breaks={
            "page: sparsemax keeps one key too few": ("1 + (i + 1) * score", "1 + (i + 2) * score"),
            "page: location counts from the first visible key": (
                "const position = cache.positions[slots[i]];",
                "const position = i;",
            ),
        },
    ),
    *in_file(
        "page/engine/attention.js",
        PAGE_PARITY,
        breaks={
            "page: the window is one wider": (
                "- position) < this.window",
                "- position) <= this.window",
            ),
            "page: latent keys are not normalised": ("meanSquare + RMS_EPS", "1 + 0 * meanSquare"),
        },
    ),
    *in_file(
        "page/engine/recurrent.js",
        PAGE_PARITY,
        breaks={
            "page: the reset gate comes after the sum": (
                "input[2 * size + i] + reset * hidden[2 * size + i]",
                "reset * (input[2 * size + i] + hidden[2 * size + i])",
            ),
            "page: the backward direction is not turned round": (
                "outputs.push(reverseRows(backward))",
                "outputs.push(backward)",
            ),
        },
    ),
    *in_file(
        "page/engine/search.js",
        PAGE_PARITY,
        PAGE_WORKER,
        breaks={
            "page: beam search stops at the first finished hypothesis": (
                "finished[nbest - 1].normalised >= bound",
                "finished[nbest - 1].normalised >= -Infinity",
            ),
            "page: hypotheses are not reordered": (
                "state.reorder(live.map(({ row }) => row))",
                "state.reorder(live.map((_, row) => Math.min(row, 0)))",
            ),
            "page: the nucleus leaves one token out": (
                "before >= topP ||",
                "before + prob >= topP ||",
            ),
        },
    ),
    *in_file(
        "page/engine/interventions.js",
        PAGE_INTERVENTIONS,
        breaks={
            "page: masks come after the normaliser": (
                'this.#intervene(scores, place, (what) => what === "mask");\n      normalise(scores);',
                'normalise(scores);\n      this.#intervene(scores, place, (what) => what === "mask");',
            ),
            "page: steps count from the first position": (
                "=== place.position - part.firstQuery\n",
                "=== place.position\n",
            ),
        },
    ),
    *in_file(
        "page/engine/tokenizer.js",
        PAGE_TOKENIZER,
        breaks={
            "page: white space is JavaScript's": (
                '"\\\\p{White_Space}\\\\x1c-\\\\x1f"',
                '"\\\\s"',
            ),
            "page: the last best merge first": (
                "if (rank < best) [best",
                "if (rank <= best && rank < Infinity) [best",
            ),
        },
    ),
    *in_file(
        "page/pack.py",
        PAGE_PACK,
        breaks={
            "page: tensors are not aligned": ("bytes(-len(binary) % ALIGNMENT)", 'b""'),
        },
    ),
    *in_file(
        "page/served/remote.js",
        PAGE_SERVED,
        breaks={
            "page: an outdated request goes on": (
                "this.waiting.get(slot)?.abort();",
                "this.waiting.get(slot);",
            ),
        },
    ),
    *in_file(
        "page/served/api.js",
        PAGE_SERVED,
        breaks={
            "page: the token is in the address": (
                "fetch(this.root + path,",
                'fetch(this.root + path + "?token=" + token,',
            ),
            "page: the token outlives the tab": ("sessionStorage.setItem", "localStorage.setItem"),
            "page: a wrong token is not said": ("this.token !== null)", "false)"),
        },
    ),
    *in_file(
        "page/served/training.js",
        PAGE_SERVED,
        breaks={
            "page: events of a log come again": ("?after=${this.next}", "?after=0"),
        },
    ),
    *in_file(
        "page/served/comparisons.js",
        PAGE_SERVED,
        breaks={
            "page: a comparison is read only once": (
                "again = !comparison.finished",
                "again = false",
            ),
        },
    ),
    *in_file(
        "page/served/chart.js",
        PAGE_SERVED,
        breaks={
            "page: charts are upside down": (
                "this.bottom, this.top, 5)",
                "this.top, this.bottom, 5)",
            ),
        },
    ),
    *in_file(
        "page/served/live-labs.js",
        PAGE_SERVED,
        breaks={
            "page: every lab has seed 0": ("{ seed, parameters })", "{ seed: 0, parameters })"),
        },
    ),
    *in_file(
        "serve/batching.py",
        SERVE_BATCHING,
        breaks={
            "serve: any jobs share a batch": (
                "self.work == other.work and self.key == other.key",
                "self.work == other.work",
            ),
            "serve: cancelled jobs are computed": (
                "jobs = [job for job in self.jobs if job.is_wanted]",
                "jobs = list(self.jobs)",
            ),
            "serve: a batch that nobody waits for goes on": ("if not is_wanted:", "if False:"),
            "serve: the queue has no limit": ("> self.limit:", "> 10 * self.limit:"),
            "serve: closing drops what waits": (
                "            self.is_closed = True\n",
                "            self.is_closed = True\n            self.jobs.clear()\n",
            ),
        },
    ),
    *in_file(
        "serve/guard.py",
        SERVE_GUARD,
        breaks={
            "serve: any name is a host": ("return name in {", "return name not in {"),
            "serve: any page may ask": ("if origin is not None and", "if False and"),
            "serve: a prefix of the token will do": (
                'hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())',
                "token.startswith(given)",
            ),
            "serve: chunked bodies have no limit": ("if len(body) > limits.body:", "if False:"),
        },
    ),
    *in_file(
        "errors.py",
        ERRORS,
        breaks={"errors: a message has no end": ("len(message) > LONGEST_MESSAGE", "False")},
    ),
    *in_file(
        "models/hub.py",
        PRETRAINED,
        breaks={"hub: a token has any id": ("if largest > MAX_ID:", "if False:")},
    ),
    *in_file(
        "training/checkpoint.py",
        RELEASED,
        breaks={
            "checkpoint: that of version 0.2.0 is refused": (
                'if "loss_steps" not in record and "loss_sum" not in tensors:',
                "if False:",
            ),
        },
    ),
    *in_file(
        "serve/tree.py",
        SERVE_API,
        breaks={
            "serve: the tree's hypotheses keep the states of others": (
                "rows.append(row)",
                "rows.append(0)",
            ),
        },
    ),
    *in_file(
        "terminal.py",
        TERMINAL,
        breaks={
            "outputs: a table has markup": ('"markup": False', '"markup": True'),
            "outputs: a progress bar has control characters": (
                "yield segment if is_ours else",
                "yield segment if True else",
            ),
        },
    ),
    *in_file(
        "escaping.py",
        TABLES,
        breaks={
            "outputs: a row of LaTeX begins with an option": (
                'for character in "[]*"',
                'for character in "]*"',
            ),
            "outputs: a cell of CSV is a formula": ('("=", "+", ', '("+", '),
            "outputs: a cell of Markdown has HTML": ('.replace("<", "&lt;")', ""),
        },
    ),
    *in_file(
        "escaping.py",
        OUTPUTS,
        breaks={
            "outputs: a line separator breaks a line": ("\\u2028\\u2029]+", "]+"),
        },
    ),
    *in_file(
        "models/ensemble.py",
        ENSEMBLE,
        breaks={
            "ensemble: logits are averaged, not log-probabilities": (
                "logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))",
                "logits.to(torch.promote_types(logits.dtype, torch.float32))",
            ),
            "ensemble: only the first member steps": (
                "model.step(tokens, member) for model, member in pairs",
                "model.step(tokens, member) for model, member in list(pairs)[:1]",
            ),
            "ensemble: the longest maximum length counts": (
                "return min((limit for limit in limits if limit is not None), default=None)",
                "return max((limit for limit in limits if limit is not None), default=None)",
            ),
            "ensemble: weights are joined along heads": (
                "joined[mechanism] = torch.cat(parts, dim)",
                "joined[mechanism] = torch.cat(parts, dim + 1)",
            ),
        },
    ),
    *in_file(
        "models/ensemble.py",
        DECODER_STATE,
        breaks={
            "ensemble: hypotheses of the members are not reordered": (
                "member.reorder(beam_indices) for member in self.members",
                "member for member in self.members",
            ),
        },
    ),
    *in_file(
        "text/agreement.py",
        AGREEMENT,
        breaks={
            "ensemble: the largest maximum of tokens counts": (
                "max_tokens=min(pair.max_tokens",
                "max_tokens=max(pair.max_tokens",
            ),
            "ensemble: tokens may differ": ("if one != other:", "if False:"),
        },
    ),
    *in_file(
        "shipped/__init__.py",
        ENSEMBLES,
        breaks={
            "ensemble: a folder with a comma in its name is split": (
                'if "," not in str(run) or os.path.exists(run):',
                'if "," not in str(run):',
            ),
        },
    ),
    *in_file(
        "template.py",
        PAGES,
        breaks={
            "outputs: any inline code is allowed": (
                "allowed[kind].append(source_hash(substitute(code, parts)))",
                """allowed[kind].append("'unsafe-inline'")""",
            ),
        },
    ),
]


def caught_by(label: str, test: str, names: Sequence[str]) -> list[Break]:
    """Breaks from above that other tests must notice, too."""
    by_name = {broken.name: broken for broken in BREAKS}
    return [replace(by_name[name], name=f"{label}: {name}", tests=(test,)) for name in names]


BREAKS += [
    *caught_by(
        "lab rotary",
        ROTARY_LAB,
        [
            "heads: rotary is not applied to keys",
            "heads: rotary is not applied to queries",
            "position: rotary rotates the other way",
            "position: NTK equals linear",
            "position: YaRN equals none",
            "position: YaRN does not scale the scores",
        ],
    ),
    *caught_by("lab relative", RELATIVE_LAB, ["position: ALiBi's sign is flipped"]),
]
