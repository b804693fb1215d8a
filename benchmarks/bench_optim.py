"""Optimizer steps: ``python -m benchmarks.bench_optim [--device cpu] [--quick]``.

Over one array and over the parameters of whole models; the rivals are PyTorch's fused and foreach
steps and torch.compile. Lists are timed as replays of a CUDA graph of one step, of each contender
alike: what a host needs to hand hundreds of tensors over is not measured. Every run goes on with
the parameters of the run before, since steps are in place; results are checked on the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import dlkern

from .harness import Case, Run, compiled, main

Tensors = list[torch.Tensor]

# Parameters of models, as their shapes.
RESNET50 = [(64, 3, 7, 7), (64,), (64,)] + [
    shape
    for blocks, before, middle in ((3, 64, 64), (4, 256, 128), (6, 512, 256), (3, 1024, 512))
    for block in range(blocks)
    for shape in (
        (middle, 4 * middle if block else before, 1, 1), (middle,), (middle,),
        (middle, middle, 3, 3), (middle,), (middle,),
        (4 * middle, middle, 1, 1), (4 * middle,), (4 * middle,),
        *(((4 * middle, before, 1, 1), (4 * middle,), (4 * middle,)) if block == 0 else ()),
    )
] + [(1000, 2048), (1000,)]  # fmt: skip
GPT_BLOCK = [(1024,), (1024,), (3072, 1024), (3072,), (1024, 1024), (1024,),
             (1024,), (1024,), (4096, 1024), (4096,), (1024, 4096), (1024,)]  # fmt: skip
LISTS = {
    "ResNet-50": RESNET50,
    "GPT of 24 blocks": GPT_BLOCK * 24,
    "300 tensors of 1000": [(1000,)] * 300,
    "1000 tensors of 10,000": [(10_000,)] * 1000,
}
CPU_LISTS = {"a GPT block": GPT_BLOCK, "300 tensors of 1000": [(1000,)] * 300}

LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2


def tensors(shapes: list, dtype: torch.dtype, device: str, positive: bool = False) -> Tensors:
    made = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    return [t.square_() for t in made] if positive else made


def size_of(lists: list[Tensors]) -> int:
    return sum(t.nbytes for tensors in lists for t in tensors)


class Step:
    """One step's lists, and a set of them for each contender so that all begin alike."""

    def __init__(self, shapes, device, states, dtypes=(torch.float32,) * 3, copy=None, views=None):
        param, grad, state = dtypes
        self.shapes, self.device, self.copy = shapes, device, copy
        self.view = views or (lambda t: t)
        self.grads = self.viewed(tensors(shapes, grad, device))
        self.first = [tensors(shapes, param, device)] + [
            tensors(shapes, state, device, positive=True) for _ in range(states)
        ]

    def viewed(self, made: Tensors) -> Tensors:
        return [self.view(t) for t in made]

    def lists(self) -> list[Tensors]:
        """Fresh parameters and states."""
        return [self.viewed([t.clone() for t in made]) for made in self.first]

    def copies(self) -> Tensors | None:
        return self.copy and [torch.empty_like(t, dtype=self.copy) for t in self.grads]

    def reset(self, lists: list[Tensors]) -> None:
        """The parameters and states as at first."""
        for mine, first in zip(lists, self.first, strict=False):
            for t, f in zip(mine, self.viewed(first), strict=True):
                t.copy_(f)

    def bytes(self) -> int:
        """Gradients are read, parameters and states read and written, copies written."""
        written = self.copies() or []
        return size_of([self.grads, written]) + 2 * size_of(self.lists())


def replayed(run: Run, result: Callable[[], Any], device: str) -> Run:
    """`run` as a graph, captured when it is wanted first, returning result(); on a CPU itself."""
    if device == "cpu":
        return lambda: (run(), result())[1]
    graph = torch.cuda.CUDAGraph()
    is_captured = False

    def replay():
        nonlocal is_captured
        if not is_captured:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # whatever is set up on the first call
                run()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                run()
            is_captured = True
        graph.replay()
        return result()

    return replay


def case(
    label: str,
    step: Step,
    ours: Callable[..., None],
    rivals: dict[str, Callable[..., None]],
    reference: Callable[..., torch.Tensor],
    tolerance: float = 1e-5,
    group: str = "more",
    further: dict[str, Run] | None = None,
) -> Case:
    """All functions take gradients, parameters and states; `reference` those of one tensor."""
    as_graph = len(step.shapes) > 1
    largest = max(range(len(step.shapes)), key=lambda i: step.first[0][i].numel())
    contenders = {}
    for name, function in {"dlkern": ours, **rivals}.items():
        lists = step.lists()
        if name == "dlkern" and step.copy:
            lists.append(step.copies())

        def run(function=function, lists=lists):
            function(step.grads, *lists)

        def result(lists=lists):
            return lists[0][largest]

        timed = replayed(run, result, step.device) if as_graph else run
        contenders[name] = once_from(lambda lists=lists: step.reset(lists), timed, result)
    return Case(
        label,
        contenders | (further or {}),
        reference=lambda: reference(
            step.grads[largest].double(),
            *(step.viewed([made[largest]])[0].double() for made in step.first),
        ),
        tolerance=tolerance,
        bytes=step.bytes(),
        group=group,
    )


def once_from(reset: Run, run: Run, result: Run) -> Run:
    """The first two runs, which try and check it, begin at the same parameters."""
    runs = 0

    def contender():
        nonlocal runs
        runs += 1
        if runs <= 2:
            reset()
        run()
        return result()

    return contender


# ---- AdamW ---------------------------------------------------------------------------------------


def adamw_reference(grad, param, m, v):
    m = BETAS[0] * m + (1 - BETAS[0]) * grad
    v = BETAS[1] * v + (1 - BETAS[1]) * grad * grad
    root = (v / (1 - BETAS[1] ** 3)).sqrt() + EPS
    return param * (1 - LR * DECAY) - LR / (1 - BETAS[0] ** 3) * m / root


def adamw_ours(grads, params, m, v, copies=None):
    dlkern.adamw_step(params, grads, m, v, lr=LR, weight_decay=DECAY, step=3, copy=copies)


def torch_adamw(device: str, foreach: bool) -> Callable[..., None]:
    state: dict[int, Tensors] = {}

    def run(grads, params, m, v):
        if id(params) not in state:
            state[id(params)] = [torch.full((), 3.0, device=device) for _ in params]
        options = {
            "amsgrad": False, "beta1": BETAS[0], "beta2": BETAS[1], "lr": LR, "eps": EPS,
            "weight_decay": DECAY, "maximize": False,
        }  # fmt: skip
        if not foreach:
            torch._fused_adamw_(params, grads, m, v, [], state[id(params)], **options)
            return
        torch._foreach_mul_(params, 1 - LR * DECAY)
        torch._foreach_lerp_(m, grads, 1 - BETAS[0])
        torch._foreach_mul_(v, BETAS[1])
        torch._foreach_addcmul_(v, grads, grads, 1 - BETAS[1])
        root = torch._foreach_sqrt(v)
        torch._foreach_div_(root, (1 - BETAS[1] ** 3) ** 0.5)
        torch._foreach_add_(root, EPS)
        torch._foreach_addcdiv_(params, m, root, -LR / (1 - BETAS[0] ** 3))

    return run


def compiled_adamw(step: Step) -> dict[str, Run]:
    """Of one array, by torch.compile."""

    def update(grad, param, m, v):
        m.lerp_(grad, 1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        root = (v / (1 - BETAS[1] ** 3)).sqrt() + EPS
        param.copy_(param * (1 - LR * DECAY) - LR / (1 - BETAS[0] ** 3) * m / root)

    lists = step.lists()
    runs = compiled(update, step.grads[0], *(made[0] for made in lists))
    return {
        name: once_from(lambda: step.reset(lists), run, lambda: lists[0][0])
        for name, run in runs.items()
    }


def adamw(label, shapes, device, *, group="more", compile_too=False, foreach=False, **options):
    step = Step(shapes, device, 2, **options)
    # PyTorch's fused step wants gradients of the parameters' dtype and writes no copies.
    same = options.get("dtypes", (torch.float32,) * 3)
    plain = len(set(same)) == 1 and not step.copy
    rivals = {"torch fused": torch_adamw(device, False)} if plain else {}
    if step.copy:
        fused = torch_adamw(device, False)

        def fused_and_copied(grads, params, m, v):
            fused([g.float() for g in grads], params, m, v)
            torch._foreach_copy_(halves, params)

        halves = step.copies()
        rivals["torch fused and copied"] = fused_and_copied
    if foreach:
        rivals["torch foreach"] = torch_adamw(device, True)
    further = compiled_adamw(step) if compile_too else {}
    eps = torch.finfo(same[0]).eps
    return case(
        f"adamw {label}", step, adamw_ours, rivals, adamw_reference,
        tolerance=max(1e-5, eps) if same[0] != torch.float64 else 1e-12, group=group,
        further=further,
    )  # fmt: skip


# ---- SGD, Lion -----------------------------------------------------------------------------------


def sgd_reference(grad, param, buffer):
    return param - LR * (0.9 * buffer + grad + DECAY * param)


def sgd_ours(grads, params, buffers, copies=None):
    dlkern.sgd_step(params, grads, buffers, lr=LR, momentum=0.9, weight_decay=DECAY, copy=copies)


def torch_sgd(grads, params, buffers):
    torch._fused_sgd_(
        params, grads, buffers, weight_decay=DECAY, momentum=0.9, lr=LR, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def sgd(label, shapes, device, **options):
    step = Step(shapes, device, 1, **options)
    return case(f"sgd {label}", step, sgd_ours, {"torch fused": torch_sgd}, sgd_reference)


def lion_reference(grad, param, m):
    return param * (1 - LR * DECAY) - LR * (BETAS[0] * m + (1 - BETAS[0]) * grad).sign()


def lion_ours(grads, params, m):
    dlkern.lion_step(params, grads, m, lr=LR, betas=BETAS, weight_decay=DECAY)


def lion_foreach(grads, params, m):
    """PyTorch has none: as one would write it."""
    direction = torch._foreach_lerp(m, grads, 1 - BETAS[0])
    torch._foreach_sign_(direction)
    torch._foreach_mul_(params, 1 - LR * DECAY)
    torch._foreach_add_(params, direction, alpha=-LR)
    torch._foreach_lerp_(m, grads, 1 - BETAS[1])


def lion(label, shapes, device):
    step = Step(shapes, device, 1)
    # An element whose direction is nearly 0 may go either way.
    return case(
        f"lion {label}", step, lion_ours, {"torch foreach": lion_foreach}, lion_reference,
        tolerance=3 * LR,
    )  # fmt: skip


# ---- Gradients -----------------------------------------------------------------------------------


def norm(label, shapes, device, dtype=torch.float32) -> Case:
    grads = tensors(shapes, dtype, device)
    outs = [torch.empty((), device=device) for _ in range(3)]
    names = ("out", "out_grad_scale", "out_found_inf")
    ours = dict(zip(names, outs, strict=True))

    def run():
        dlkern.grad_norm(grads, max_norm=1.0, **ours)

    results: dict[str, torch.Tensor] = {}

    def rival():
        norms = torch._foreach_norm(grads, 2.0, dtype=torch.float32)
        results["torch"] = torch.linalg.vector_norm(torch.stack(norms))

    return Case(
        f"grad_norm {label}",
        {
            "dlkern": replayed(run, lambda: outs[0], device),
            "torch foreach": replayed(rival, lambda: results["torch"], device),
        },
        reference=lambda: sum(g.double().square().sum() for g in grads).sqrt(),
        tolerance=1e-5,
        bytes=size_of([grads]),
        group="more",
    )


def unscale(label, shapes, device, dtype=torch.float32) -> Case:
    """Multiplied by 1, so that the gradients of all runs are alike."""
    grads = tensors(shapes, dtype, device)
    one, found = torch.ones((), device=device), torch.zeros((), device=device)

    def rival():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)

    return Case(
        f"scale_grads {label}",
        {
            "dlkern": replayed(
                lambda: dlkern.scale_grads(grads, one, found_inf=found), lambda: grads[0], device
            ),
            "torch": replayed(rival, lambda: grads[0], device),
        },
        reference=lambda: grads[0].double(),
        bytes=2 * size_of([grads]),
        group="more",
    )


# ---- All -----------------------------------------------------------------------------------------

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def gpu_cases(device: str, quick: bool) -> Iterator[Case]:
    yield adamw("fused 2^28 fp32", [(2**28,)], device, group="table", compile_too=not quick)
    yield adamw("ResNet-50 fp32", RESNET50, device, foreach=True)
    yield norm("ResNet-50 fp32", RESNET50, device)
    if quick:
        return
    for n in (2**26, 2**22, 2**18, 1000):
        yield adamw(f"{n} fp32", [(n,)], device)
    big = [(2**27,)]
    yield adamw("2^27 bf16", big, device, dtypes=(BF16,) * 3)
    yield adamw("2^27 fp16, states in fp32", big, device, dtypes=(FP16, FP16, FP32))
    yield adamw("2^27 bf16, gradient and states in fp32", big, device, dtypes=(BF16, FP32, FP32))
    yield adamw("2^27 fp32 with copies in bf16", big, device, copy=BF16)
    mixed = {"dtypes": (FP32, BF16, FP32), "copy": BF16}
    yield adamw("2^27 fp32, gradient and copies in bf16", big, device, **mixed)
    yield adamw("2^25 fp64", [(2**25,)], device, dtypes=(FP64,) * 3)
    yield adamw("2^26 + 1 fp32, unaligned", [(2**26 + 2,)], device, views=lambda t: t[1:])
    transposed = {"views": lambda t: t.t()}
    yield adamw("8192x8192 fp32, transposed", [(8192, 8192)], device, **transposed)
    every_second = {"views": lambda t: t[:, ::2]}
    yield adamw("8192x8192 fp32, every second column", [(8192, 8192)], device, **every_second)
    for label, shapes in LISTS.items():
        if label != "ResNet-50":
            yield adamw(f"{label} fp32", shapes, device)
    yield adamw(
        "GPT of 24 blocks fp32, gradient and copies in bf16", GPT_BLOCK * 24, device, **mixed
    )
    yield sgd("momentum 2^27 fp32", big, device)
    yield sgd("momentum ResNet-50 fp32", RESNET50, device)
    yield lion("2^27 fp32", big, device)
    yield lion("GPT of 24 blocks fp32", GPT_BLOCK * 24, device)
    yield norm("2^28 fp32", [(2**28,)], device)
    yield norm("2^28 bf16", [(2**28,)], device, BF16)
    yield norm("GPT of 24 blocks bf16", GPT_BLOCK * 24, device, BF16)
    yield unscale("2^28 fp16", [(2**28,)], device, FP16)
    yield unscale("ResNet-50 fp32", RESNET50, device)


def cpu_cases(device: str, quick: bool) -> Iterator[Case]:
    yield adamw("2^22 fp32", [(2**22,)], device, group="table")
    yield norm("2^22 fp32", [(2**22,)], device)
    if quick:
        return
    yield adamw("2^16 fp32", [(2**16,)], device)
    yield adamw("2^22 bf16", [(2**22,)], device, dtypes=(BF16,) * 3)
    yield adamw("2^22 fp32 with copies in bf16", [(2**22,)], device, copy=BF16)
    yield adamw("2^21 fp64", [(2**21,)], device, dtypes=(FP64,) * 3)
    for label, shapes in CPU_LISTS.items():
        yield adamw(f"{label} fp32", shapes, device, foreach=True)
        yield sgd(f"momentum {label} fp32", shapes, device)
        yield norm(f"{label} fp32", shapes, device)
        yield unscale(f"{label} fp32", shapes, device)
    yield sgd("momentum 2^22 fp32", [(2**22,)], device)
    yield lion("2^22 fp32", [(2**22,)], device)


def cases(device: str, quick: bool) -> Iterator[Case]:
    return (gpu_cases if device == "cuda" else cpu_cases)(device, quick)


if __name__ == "__main__":
    main("optim", cases)
