"""Other toolkits (the extra `peers`), with random weights of the same shape."""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.text.batch import pad
from regard.text.tokenizer import BOS, EOS, PAD

PACKAGES = ("transformers", "ctranslate2")
Batches = list[list[list[int]]]


def check_installed() -> None:
    """Raise an error that names the missing packages and the command that installs them."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"--peers needs {' and '.join(PACKAGES)}; not installed: {', '.join(missing)}. "
            'Install with: pip install "regard[peers]"'
        )


class Transformers:
    """A Hugging Face Marian model and its `generate`."""

    def __init__(self, shape: dict[str, int], device: str) -> None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import MarianConfig, MarianMTModel

        stacks: dict[str, Any] = {
            f"{stack}_{name}": shape[key]
            for stack in ("encoder", "decoder")
            for name, key in (
                ("layers", "layers"),
                ("attention_heads", "heads"),
                ("ffn_dim", "d_ff"),
            )
        }
        torch.manual_seed(0)
        config = MarianConfig(
            vocab_size=shape["vocab_size"],
            d_model=shape["d_model"],
            max_position_embeddings=256,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            **stacks,
        )
        model: Any = MarianMTModel(config)
        self.model = model.eval().to(device)
        self.device, self.vocab_size = device, shape["vocab_size"]

    def __call__(self, batches: Batches, width: int, steps: int) -> int:
        """Translate the batches; return the number of generated tokens."""
        tokens = 0
        for rows in batches:
            source, mask = pad(rows)
            outputs: Any = self.model.generate(
                input_ids=source.to(self.device),
                attention_mask=mask.long().to(self.device),
                num_beams=width,
                do_sample=False,
                min_new_tokens=steps,
                max_new_tokens=steps,
            )
            tokens += outputs.shape[0] * (outputs.shape[1] - 1)  # the first is BOS
        return tokens


class CTranslate2:
    """The same Marian model through CTranslate2."""

    def __init__(self, peer: Transformers, precision: str) -> None:
        import ctranslate2  # type: ignore[import-not-found]
        from ctranslate2.converters.transformers import (  # type: ignore[import-not-found]
            MarianMTLoader,
        )

        spec: Any = MarianMTLoader().get_model_spec(peer.model)
        # The loader drops the last vocabulary entry, which is the padding token in Marian models.
        vocabulary = [str(i) for i in range(peer.vocab_size - 1)]
        vocabulary[:4] = ["<pad>", "<s>", "</s>", "<unk>"]
        spec.register_source_vocabulary(vocabulary)
        spec.register_target_vocabulary(vocabulary)
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
        """Translate the batches; return the number of generated tokens."""
        tokens = 0
        for rows in batches:
            outputs = self.translator.translate_batch(
                [[str(i) for i in row] for row in rows],
                beam_size=width,
                min_decoding_length=steps,
                max_decoding_length=steps,
            )
            tokens += sum(len(output.hypotheses[0]) for output in outputs)
        return tokens
