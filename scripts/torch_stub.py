"""Write dlkern/torch/__init__.pyi: the types of functions that follow from the table of operators.

python scripts/torch_stub.py         after a change of an op; a test says when that was forgotten
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import dlkern.torch as dkt
from dlkern.torch._functions import _WRITTEN, functions
from dlkern.torch._registry import OPERATORS, Operator

STUB = Path(__file__).resolve().parents[1] / "dlkern/torch/__init__.pyi"
HEAD = '''\
"""Made by scripts/torch_stub.py from the table of operators."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, dtype

from dlkern.torch import functional as functional
from dlkern.torch import kernels as kernels
from dlkern.torch import nn as nn
from dlkern.torch import optim as optim
from dlkern.torch._convert import Entry as Entry
from dlkern.torch._convert import Report as Report
from dlkern.torch._convert import convert as convert
from dlkern.torch._convert import revert as revert

'''
TYPES = {
    "Tensor": "Tensor",
    "List[Tensor]": "Tensor | Sequence[Tensor]",
    "List[int]": "int | Sequence[int]",
    **{name: name for name in ("int", "float", "bool", "str")},
}


def type_of(name: str, operator: Operator, default: object) -> str:
    """Of a parameter, by the schema and, where that does not have it, by the default."""
    types = operator.types
    if f"{operator.name}_float8" in OPERATORS:
        types = OPERATORS[f"{operator.name}_float8"].types | types
    declared = types.get(name)
    optional = default is None
    if name.endswith("dtype"):
        kind = "dtype | str"
    elif name == "padding":
        kind = "str | int | Sequence[int | Sequence[int]]"
    elif f"{name}_tensor" in types:
        kind = f"{declared} | Tensor"
    elif declared is not None:
        optional = optional or declared.startswith("Optional[")
        declared = declared.removeprefix("Optional[").removesuffix("]" if optional else "")
        kind = TYPES.get(declared) or TYPES[declared + "]"]
    elif isinstance(default, tuple):
        kind = f"tuple[{', '.join(type(item).__name__ for item in default)}]"
    else:
        kind = "bool" if isinstance(default, bool) else "Any"
    return f"{kind} | None" if optional and kind != "Any" else kind


def result_of(name: str, operator: Operator) -> str:
    kinds = [str(r.type) for r in operator.overload._schema.returns]
    if name in _WRITTEN or any(k != "Tensor" for k in kinds):
        return "Any" if kinds else "None"
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]" if kinds else "None"


def written(default: object) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


def function_stub(name: str) -> str:
    operator = OPERATORS[name]
    lines, keyword_only = [], False
    for parameter in inspect.signature(functions[name]).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("*")
        has_default = parameter.default is not parameter.empty
        text = f"{parameter.name}: {type_of(parameter.name, operator, parameter.default)}"
        lines.append(f"{text} = {written(parameter.default)}" if has_default else text)
    result = result_of(name, operator)
    flat = f"def {name}({', '.join(lines)}) -> {result}: ..."
    if len(flat) <= 100:
        return flat + "\n"
    return f"def {name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {result}: ...\n"


def stub() -> str:
    names = sorted(set(functions) & set(dkt.__all__))
    return HEAD + "".join(function_stub(name) for name in names)


if __name__ == "__main__":
    STUB.write_text(stub())
