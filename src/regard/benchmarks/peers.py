"""Other tools, installed on request into the user's cache, with random weights of an equal shape."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.text import datasets
from regard.text.batch import pad
from regard.text.tokenizer import BEGIN, END, PAD

PACKAGES = ("transformers", "ctranslate2")
Batches = list[list[list[int]]]


def install(report: Callable[[str], object]) -> None:
    """Both tools with pip, beside this environment: what is installed here is used before them."""
    folder = datasets.cache() / "peers"
    if not all((folder / name).is_dir() for name in PACKAGES):
        report(f"installing {', '.join(PACKAGES)} into {folder}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        # Their own needs are met here already, but for these; PyTorch is not fetched again.
        needs = ["huggingface_hub", "pyyaml", "regex", "requests", "tqdm", "packaging", "filelock"]
        for extra in ([], ["--upgrade"]):
            wanted = ["--no-deps", *PACKAGES] if not extra else needs
            done = subprocess.run([*command, *extra, *wanted], capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise UserError(f"pip could not install {' '.join(wanted)}: {said}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


class Transformers:
    """A Marian model and its `generate`."""

    def __init__(self, shape: dict[str, int], device: str) -> None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import MarianConfig, MarianMTModel

        parts: dict[str, Any] = {
            f"{part}_{name}": shape[ours]
            for part in ("encoder", "decoder")
            for name, ours in (
                ("layers", "layers"),
                ("attention_heads", "heads"),
                ("ffn_dim", "d_ff"),
            )
        }
        torch.manual_seed(0)
        made = MarianConfig(
            vocab_size=shape["vocabulary"],
            d_model=shape["d_model"],
            max_position_embeddings=256,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
            decoder_start_token_id=BEGIN,
            forced_eos_token_id=None,
            **parts,
        )
        model: Any = MarianMTModel(made)
        self.model = model.eval().to(device)
        self.device, self.vocabulary = device, shape["vocabulary"]

    def __call__(self, batches: Batches, width: int, steps: int) -> int:
        made = 0
        for rows in batches:
            source, mask = pad(rows)
            found: Any = self.model.generate(
                input_ids=source.to(self.device),
                attention_mask=mask.long().to(self.device),
                num_beams=width,
                do_sample=False,
                min_new_tokens=steps,
                max_new_tokens=steps,
            )
            made += found.shape[0] * (found.shape[1] - 1)  # the first is begin
        return made


class CTranslate2:
    """The same Marian model through CTranslate2."""

    def __init__(self, peer: Transformers, precision: str) -> None:
        import ctranslate2  # type: ignore[import-not-found]
        from ctranslate2.converters.transformers import (  # type: ignore[import-not-found]
            MarianMTLoader,
        )

        spec: Any = MarianMTLoader().get_model_spec(peer.model)
        # It leaves the vocabulary's last entry out: with Marian that is the padding.
        words = [str(i) for i in range(peer.vocabulary - 1)]
        words[:4] = ["<pad>", "<s>", "</s>", "<unk>"]
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.bos_token, spec.config.eos_token = "<s>", "</s>"
        spec.config.unk_token = spec.config.decoder_start_token = "<unk>"
        spec.validate()
        if precision == "int8":
            spec.optimize(quantization="int8")
        with tempfile.TemporaryDirectory() as folder:
            spec.save(str(Path(folder)))
            self.translator = ctranslate2.Translator(
                folder,
                device=peer.device,
                compute_type=precision,
                intra_threads=torch.get_num_threads(),
            )

    def __call__(self, batches: Batches, width: int, steps: int) -> int:
        made = 0
        for rows in batches:
            found = self.translator.translate_batch(
                [[str(i) for i in row] for row in rows],
                beam_size=width,
                min_decoding_length=steps,
                max_decoding_length=steps,
            )
            made += sum(len(output.hypotheses[0]) for output in found)
        return made
