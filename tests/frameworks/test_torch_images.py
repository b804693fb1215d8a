"""Images in torch's channels-last format: results and gradients come in it."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import dlkern
import dlkern.torch as dkt
import dlkern.torch.functional as F

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
X2, X3 = (2, 6, 7, 5), (2, 6, 5, 4, 3)


def weighted_sum(a, b):
    """Its gradients lie as dy does, which is what they are."""
    return dkt.add(a, b, alpha=0.5)


# Name -> function of tensors, and their shapes; images come first.
CASES = {
    "conv": (lambda x, w: dkt.conv(x, w, stride=2, padding=1), [X2, (4, 6, 3, 3)], 1),
    "conv of groups": (lambda x, w: dkt.conv(x, w, padding=1, groups=2), [X2, (4, 3, 3, 3)], 1),
    "conv 3-D": (lambda x, w: F.conv3d(x, w, padding=1), [X3, (4, 6, 3, 3, 3)], 1),
    "conv_transpose": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [X2, (6, 4, 3, 3)], 1),
    "max_pool": (lambda x: dkt.max_pool(x, 3, stride=2, padding=1), [X2], 1),
    "avg_pool 3-D": (lambda x: dkt.avg_pool(x, 2), [X3], 1),
    "lp_pool": (lambda x: dkt.lp_pool(x, 2.0, 3), [X2], 1),
    "adaptive_max_pool": (lambda x: dkt.adaptive_max_pool(x, 2), [X2], 1),
    "global average": (lambda x: dkt.adaptive_avg_pool(x, 1), [X2], 1),
    "batch_norm": (
        lambda x, r, w, b: dkt.batch_norm_training(x, w, b, residual=r, activation="relu")[0],
        [X2, X2, (6,), (6,)], 2,
    ),
    "group_norm": (lambda x, w: dkt.group_norm(x, 2, w), [X2, (6,)], 1),
    "instance_norm": (lambda x, w: dkt.instance_norm(x, w), [X3, (6,)], 1),
    "relu": (dkt.relu, [X2], 1),
    "gelu 3-D": (dkt.gelu, [X3], 1),
    "add": (weighted_sum, [X2, X2], 2),
    "dropout": (lambda x: F.dropout(x, 0.0), [X2], 1),
}  # fmt: skip
PARAMETRIZED = pytest.mark.parametrize(
    "function, shapes, images", CASES.values(), ids=[n.replace(" ", "-") for n in CASES]
)


class Counting(TorchDispatchMode):
    """The names of the ops that are called inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def is_last(x):
    return x.is_contiguous(memory_format=LAST[x.dim()])


def tensors(shapes, images, device, last):
    """Seeded; the images, and weights that lie like them, channels last."""
    torch.manual_seed(0)
    result = []
    for i, shape in enumerate(shapes):
        t = torch.rand(shape, dtype=torch.float64, device=device) + 0.1
        if last and (i < images or len(shape) > 1):
            t = t.contiguous(memory_format=LAST[len(shape)])
        result.append(t.requires_grad_())
    return result


GRADIENTS = {
    "contiguous": lambda dy: dy.contiguous(),
    "channels last": lambda dy: dy.contiguous(memory_format=LAST[dy.dim()]),
    "another order": lambda dy: dy.transpose(2, 3).contiguous().transpose(2, 3),
    "broadcast": lambda dy: dy[:, :, :1].expand_as(dy),
}


@PARAMETRIZED
def test_results_and_gradients_lie_as_the_images_do(function, shapes, images, device):
    inputs = tensors(shapes, images, device, last=True)
    contiguous = tensors(shapes, images, device, last=False)
    y, expected = function(*inputs), function(*contiguous)
    assert is_last(y)
    assert expected.is_contiguous()
    torch.testing.assert_close(y, expected)
    for make in GRADIENTS.values():
        dy = make(torch.rand_like(expected))
        got = torch.autograd.grad(y, inputs, dy, retain_graph=True)
        right = torch.autograd.grad(expected, contiguous, dy, retain_graph=True)
        for i, (g, r) in enumerate(zip(got, right, strict=True)):
            torch.testing.assert_close(g, r)
            assert g.dim() < 4 or is_last(g) or function is weighted_sum, i


@PARAMETRIZED
def test_fake_results_have_the_strides_of_real_ones(function, shapes, images, device):
    for last in (False, True):
        inputs = [t.detach() for t in tensors(shapes, images, device, last)]
        with FakeTensorMode() as mode:
            fake = function(*map(mode.from_tensor, inputs))
        y = function(*inputs)
        assert fake.stride() == y.stride()


@PARAMETRIZED
def test_compiled_results_and_gradients(function, shapes, images, device):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    inputs = tensors(shapes, images, device, last=True)
    results = []
    for f in (function, compiled):
        y = f(*inputs)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    for eager, other in zip(*results, strict=True):
        torch.testing.assert_close(other, eager)
        assert other.stride() == eager.stride()


def test_results_can_be_changed_in_place(device):
    x, w = tensors([X2, (4, 6, 3, 3)], 1, device, last=True)
    y = F.conv2d(x, w)
    assert not y._is_view()
    y += 1
    y.sum().backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad(F.conv2d(x, w).sum(), w)[0])


def test_results_of_8_bits_and_of_fused_convolutions(device):
    x, w = (t.detach() for t in tensors([X2, (4, 6, 3, 3)], 1, device, last=True))
    y, before = dlkern.conv_bias_act(x, w, activation="relu", preactivation=True)[:2]
    assert is_last(y)
    assert is_last(before)
    eighths = [(t * 8).to(torch.int8) for t in (x, w)]
    y = dkt.scaled_conv(*eighths, out_dtype="float32")
    assert is_last(y)
    with FakeTensorMode() as mode:
        fake = dkt.scaled_conv(*map(mode.from_tensor, eighths), out_dtype="float32")
    assert fake.stride() == y.stride()


@pytest.mark.parametrize("activation", ["silu", None])
def test_both_results_of_a_fused_convolution_have_a_gradient(device, activation):
    """Without an activation too, where they are the same numbers."""
    x, w = tensors([X2, (4, 6, 3, 3)], 1, device, last=True)
    y, z = dkt.conv_bias_act(x, w, activation=activation, preactivation=True)
    sums = dkt.conv(x, w)
    torch.testing.assert_close(z, sums)
    assert z.data_ptr() != y.data_ptr()
    (got,) = torch.autograd.grad((y * z).sum(), [x])
    right = sums if activation is None else torch.nn.functional.silu(sums)
    torch.testing.assert_close(got, torch.autograd.grad((right * sums).sum(), [x])[0])


def test_statistics_are_given_no_gradients(device):
    x, w, b = tensors([X2, (6,), (6,)], 1, device, last=True)
    y = dkt.batch_norm_training(x, w, b)[0]
    with Counting() as made:
        y.backward(torch.ones_like(y))
    assert not any("zeros" in name or "fill" in name for name in made.names), made.names


def test_images_of_one_format_alone_are_followed(device):
    y = dkt.relu(torch.rand(2, 1, 4, 4, device=device).contiguous(memory_format=LAST[4]))
    assert y.stride() == (16, 16, 4, 1)  # of one channel: both formats
    sliced = torch.rand(2, 8, 4, 4, device=device).contiguous(memory_format=LAST[4])[:, :4]
    assert dkt.relu(sliced).is_contiguous()
    empty = torch.rand(0, 8, 4, 4, device=device).contiguous(memory_format=LAST[4])
    assert dkt.relu(empty).shape == empty.shape
    named = torch.rand(2, 5, 4, 3, device=device).contiguous(memory_format=LAST[4])
    assert dkt.max_pool(named, 2, layout="NHWC").is_contiguous()
