"""The language of element-wise kernels: a small part of C++, parsed, typed, printed and evaluated.

::

    code       = statement (";" statement)* [";"]
    statement  = [type] name ("=" | "+=" | "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=") value
    value      = C's: ?: || && | ^ & == != < <= > >= << >> + - * / % ! ~ casts calls

Operators, precedence and conversions are those of C++. Two things differ: a floating literal
without suffix, like a Python number given as a scalar, has the type `real` and does not turn float
into double; and integers of fewer than 32 bits become int where they are read. Comments are C's.

A Program is parsed code, which knows its names; `Program.typed` gives it types and so a Kernel,
which `cpp` prints for a GPU's compiler and `evaluate` computes with NumPy.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

# ---- Types ---------------------------------------------------------------------------------------

#: Name -> C++ type; in the order of the usual arithmetic conversions.
TYPES = {
    "bool": "bool",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}
_RANK = {name: rank for rank, name in enumerate(TYPES)}
_NUMPY = {name: np.dtype(name) for name in TYPES}

#: Dtype of an array -> the type of its elements in an expression.
COMPUTED = {
    "float16": "float32",
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    **{name: name for name in TYPES},
}

_TYPE_NAMES = {
    "bool": "bool",
    "int": "int32",
    "int32_t": "int32",
    "unsigned": "uint32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "float": "float32",
    "double": "float64",
    "real": "real",
    "auto": "auto",
}


def is_floating(type: str) -> bool:
    return type in ("float32", "float64")


def common(a: str, b: str) -> str:
    """The usual arithmetic conversions."""
    return max(a, b, "int32", key=lambda type: _RANK[type])


# ---- Functions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """One that an expression can call.

    Parameters
    ----------
    arity : int
    cpp : str
        Name in C++ for double; for float an ``f`` is appended.
    numpy : callable
    result : str
        "real": arguments become floating, and so is the result; "bool": the result alone is not;
        "same": the common type of the arguments, integers too.
    """

    arity: int
    cpp: str
    numpy: Callable[..., Any]
    result: str = "real"


def _special(name: str) -> Callable[..., Any]:
    """A function that NumPy lacks: SciPy's where it is installed, else that of math."""

    @functools.cache
    def find() -> Callable[..., Any]:
        try:
            import scipy.special
        except ImportError:
            scalar = np.vectorize(getattr(math, name), otypes=[np.float64])
            return lambda x: scalar(x).astype(x.dtype)
        return getattr(scipy.special, {"lgamma": "gammaln"}.get(name, name))

    return lambda x: find()(x)


def _round(x: Any) -> Any:
    """Halves away from zero, as in C."""
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1, x), 0).astype(x.dtype)


def _fma(x: Any, y: Any, z: Any) -> Any:
    """Rounded once; of float64 twice, for which NumPy has no wider type."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(x.dtype)


FUNCTIONS: dict[str, Function] = {
    name: Function(1, name, getattr(np, numpy))
    for name, numpy in {
        **{
            n: n
            for n in (
                "exp",
                "exp2",
                "expm1",
                "log",
                "log2",
                "log10",
                "log1p",
                "sqrt",
                "cbrt",
                "sin",
            )
        },
        **{
            n: n
            for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint")
        },
        **{f"a{n}": f"arc{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    }.items()
}
FUNCTIONS |= {name: Function(1, name, _special(name)) for name in ("erf", "erfc", "lgamma")}
FUNCTIONS |= {
    "rsqrt": Function(1, "rsqrt", lambda x: (1 / np.sqrt(x)).astype(x.dtype)),
    "round": Function(1, "round", _round),
    "fabs": Function(1, "fabs", np.abs),
    "pow": Function(2, "pow", np.power),
    "atan2": Function(2, "atan2", np.arctan2),
    "hypot": Function(2, "hypot", np.hypot),
    "fmod": Function(2, "fmod", np.fmod),
    "copysign": Function(2, "copysign", np.copysign),
    "fmin": Function(2, "fmin", np.fmin),
    "fmax": Function(2, "fmax", np.fmax),
    "fma": Function(3, "fma", _fma),
    "isnan": Function(1, "isnan", np.isnan, "bool"),
    "isinf": Function(1, "isinf", np.isinf, "bool"),
    "isfinite": Function(1, "isfinite", np.isfinite, "bool"),
    "abs": Function(1, "", np.abs, "same"),
    # Of a number and NaN the number, as fmin and fmax.
    "min": Function(2, "", np.fmin, "same"),
    "max": Function(2, "", np.fmax, "same"),
}
CONSTANTS = {"M_PI": math.pi, "INFINITY": math.inf, "NAN": math.nan}

# ---- Text ----------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<number>0[xX][0-9a-fA-F]+[uUlL]* | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<op><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^<>=!~?:;,()])
    """,
    re.VERBOSE | re.DOTALL,
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="),
           ("<<", ">>"), ("+", "-"), ("*", "/", "%"))  # fmt: skip
_ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass
class Node:
    """Of the syntax tree: an operator, "name", "number", "cast" or "call", and its operands."""

    kind: str
    at: int
    text: str = ""
    args: tuple[Node, ...] = ()
    type: str = ""


@dataclass
class Statement:
    target: str
    declared: str  # its type, or ""
    value: Node
    at: int


class Source:
    """The text, to say where something is wrong."""

    def __init__(self, op: str, text: str) -> None:
        self.op, self.text = op, text

    def fail(self, at: int, message: str, error: type[Exception] = ValueError) -> NoReturn:
        before = self.text[:at]
        line = before.count("\n") + 1
        column = at - (before.rfind("\n") + 1) + 1
        shown = self.text.split("\n")[line - 1]
        raise error(
            f"{self.op}: line {line}, column {column}: {message}\n"
            f"    {shown}\n    {' ' * (column - 1)}^"
        )

    def tokens(self) -> list[Token]:
        found, at = [], 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                self.fail(at, f"unexpected character {self.text[at]!r}")
            kind = match.lastgroup or ""
            if kind != "space":
                found.append(Token(kind, match[0], at))
            at = match.end()
        end = len(self.text.rstrip())
        return [*found, Token("end", "end of the code", end)]


class _Parser:
    def __init__(self, source: Source) -> None:
        self.source, self.tokens, self.position = source, source.tokens(), 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def next(self) -> Token:
        token = self.token
        self.position += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        return self.next() if self.token.kind != "end" and self.token.text in texts else None

    def expect(self, text: str) -> Token:
        if self.token.text != text or self.token.kind == "end":
            self.source.fail(self.token.at, f"expected {text!r} before {self.found()}")
        return self.next()

    def found(self) -> str:
        return self.token.text if self.token.kind == "end" else repr(self.token.text)

    def program(self) -> list[Statement]:
        statements = []
        while self.token.kind != "end":
            if not self.accept(";"):
                statements.append(self.statement())
                if self.token.kind != "end":
                    self.expect(";")
        if not statements:
            self.source.fail(0, "expected a statement such as y = x + 1")
        return statements

    def type_name(self) -> str:
        """A type, of which `long` and `unsigned` may take several words; "" where none begins."""
        words = []
        while self.token.kind == "name" and self.token.text in ("long", "unsigned", "int"):
            words.append(self.next().text)
        if words:
            wide = "long" in words
            return ("u" if "unsigned" in words else "") + ("int64" if wide else "int32")
        if self.token.kind == "name" and self.token.text in _TYPE_NAMES:
            return _TYPE_NAMES[self.next().text]
        return ""

    def statement(self) -> Statement:
        constant = self.accept("const")
        declared = self.type_name()
        if constant and not declared:
            self.source.fail(self.token.at, f"expected a type before {self.found()}")
        name = self.next()
        if name.kind != "name":
            self.position -= 1
            self.source.fail(name.at, f"expected a name before {self.found()}")
        if name.text in FUNCTIONS or name.text in CONSTANTS or name.text in ("where", "clamp"):
            self.source.fail(name.at, f"{name.text!r} cannot be assigned to")
        operator = self.accept(*_ASSIGN)
        if operator is None:
            self.source.fail(self.token.at, f"expected '=' before {self.found()}")
        if declared and operator.text != "=":
            self.source.fail(operator.at, f"expected '=' before {operator.text!r}")
        value = self.expression()
        if operator.text != "=":
            old = Node("name", name.at, name.text)
            value = Node(operator.text[:-1], operator.at, args=(old, value))
        return Statement(name.text, declared, value, name.at)

    def expression(self) -> Node:
        condition = self.binary(0)
        mark = self.accept("?")
        if not mark:
            return condition
        yes = self.expression()
        self.expect(":")
        return Node("?:", mark.at, args=(condition, yes, self.expression()))

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while operator := self.accept(*_LEVELS[level]):
            left = Node(operator.text, operator.at, args=(left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        operator = self.accept("-", "+", "!", "~")
        if operator:
            return Node("u" + operator.text, operator.at, args=(self.unary(),))
        if self.token.text == "(":
            start = self.position
            at = self.next().at
            type = self.type_name()
            if type and self.accept(")"):
                return Node("cast", at, type, (self.unary(),))
            self.position = start
        return self.primary()

    def primary(self) -> Node:
        token = self.token
        type = self.type_name() if token.kind == "name" else ""
        if type:
            return Node("cast", token.at, type, self.arguments(1, token))
        self.next()
        if token.text == "(" and token.kind == "op":
            inner = self.expression()
            self.expect(")")
            return inner
        if token.kind == "number":
            node = Node("number", token.at, token.text)
            _Typing(self.source, {}, "float32").number(node)  # fails where it is none
            return node
        if token.kind == "name":
            return (
                self.call(token) if self.token.text == "(" else Node("name", token.at, token.text)
            )
        self.position -= 1
        self.source.fail(token.at, f"expected an expression before {self.found()}")

    def call(self, name: Token) -> Node:
        if name.text == "where":
            return Node("?:", name.at, args=self.arguments(3, name))
        if name.text == "clamp":  # min(max(x, low), high)
            x, low, high = self.arguments(3, name)
            return Node("call", name.at, "min", (Node("call", name.at, "max", (x, low)), high))
        if name.text not in FUNCTIONS:
            self.source.fail(name.at, f"{name.text!r} is no function that kernels can call")
        return Node("call", name.at, name.text, self.arguments(FUNCTIONS[name.text].arity, name))

    def arguments(self, count: int, name: Token) -> tuple[Node, ...]:
        self.expect("(")
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        self.expect(")")
        if len(found) != count:
            self.source.fail(name.at, f"{name.text} takes {count} arguments, {len(found)} given")
        return tuple(found)


# ---- Programs ------------------------------------------------------------------------------------


def _names_in(node: Node) -> list[Node]:
    if node.kind == "name" and node.text not in (*CONSTANTS, "true", "false"):
        return [node]
    return [name for arg in node.args for name in _names_in(arg)]


class Program:
    """Parsed code.

    `inputs` are the names that are read before anything is assigned to them, and `outputs` those
    that are assigned without a declaration; a name can be both (in place).
    """

    def __init__(self, op: str, text: str) -> None:
        self.source = Source(op, text)
        self.statements = _Parser(self.source).program()
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        declared: set[str] = set()
        for statement in self.statements:
            for name in _names_in(statement.value):
                known = (*declared, *self.outputs, *self.inputs)
                if name.text not in known:
                    self.inputs.append(name.text)
            if statement.declared:
                if statement.target in (*declared, *self.inputs, *self.outputs):
                    self.source.fail(statement.at, f"{statement.target!r} is declared twice")
                declared.add(statement.target)
            elif statement.target not in (*declared, *self.outputs):
                self.outputs.append(statement.target)
        if not self.outputs:
            self.source.fail(
                self.statements[-1].at, "nothing is computed: every name that is assigned is local"
            )

    def typed(self, types: Mapping[str, str], real: str) -> Kernel:
        """With the type of each input, and the one that is called real."""
        return Kernel(self, _Typing(self.source, types, real).run(self.statements), real)


@dataclass(frozen=True)
class Assignment:
    target: str
    value: Node  # of the target's type
    first: bool


class _Typing:
    """Gives every node a type and makes conversions explicit."""

    def __init__(self, source: Source, types: Mapping[str, str], real: str) -> None:
        self.source, self.real = source, real
        self.types = dict(types)
        self.read_only = set(types)

    def run(self, statements: list[Statement]) -> list[Assignment]:
        done = []
        for statement in statements:
            value = self.visit(statement.value)
            first = statement.target not in self.types
            if first:
                declared = statement.declared or "auto"
                type = {"auto": value.type, "real": self.real}.get(declared, declared)
                self.types[statement.target] = type
            type = self.types[statement.target]
            done.append(Assignment(statement.target, self.cast(value, type), first))
        return done

    def cast(self, node: Node, type: str) -> Node:
        if node.type == type:
            return node
        return Node("cast", node.at, type, (node,), type)

    def visit(self, node: Node) -> Node:
        if node.kind == "number":
            return self.number(node)
        if node.kind == "name":
            if node.text in ("true", "false"):
                return Node("number", node.at, node.text, type="bool")
            if node.text in CONSTANTS:
                return Node("number", node.at, node.text, type=self.real)
            return Node("name", node.at, node.text, type=self.types[node.text])
        args = [self.visit(arg) for arg in node.args]
        if node.kind == "cast":
            type = {"real": self.real, "auto": args[0].type}.get(node.text, node.text)
            return self.cast(args[0], type)
        if node.kind == "call":
            return self.call(node, args)
        return self.operator(node, args)

    def number(self, node: Node) -> Node:
        text = node.text.lower()
        is_hex = text.startswith("0x")
        if not is_hex and ("." in text or "e" in text or text.endswith("f")):
            body = text.rstrip("fl")
            if not re.fullmatch(r"[\d.]+(e[+-]?\d+)?", body) or "u" in text:
                self.source.fail(node.at, f"{node.text} is no number")
            type = "float32" if text.endswith("f") else self.real
            return Node("number", node.at, body, type=type)
        body = text.rstrip("ul")
        if not is_hex and len(body) > 1 and body[0] == "0":
            self.source.fail(node.at, f"{node.text}: octal numbers are not known")
        suffix, value = text[len(body) :], int(body, 0)
        unsigned, wide = "u" in suffix, "l" in suffix or value >= 2**31
        if unsigned:
            wide = "l" in suffix or value >= 2**32
        if value >= 2 ** (64 if unsigned else 63):
            self.source.fail(node.at, f"{node.text} needs more than 64 bits")
        type = ("u" if unsigned else "") + ("int64" if wide else "int32")
        return Node("number", node.at, str(value), type=type)

    def call(self, node: Node, args: list[Node]) -> Node:
        function = FUNCTIONS[node.text]
        type = functools.reduce(common, (arg.type for arg in args))
        if function.result != "same" and not is_floating(type):
            type = self.real
        result = "bool" if function.result == "bool" else type
        args = [self.cast(arg, type) for arg in args]
        return Node("call", node.at, node.text, tuple(args), result)

    def operator(self, node: Node, args: list[Node]) -> Node:
        kind = node.kind
        if kind == "?:":
            condition, yes, no = args
            type = yes.type if yes.type == no.type else common(yes.type, no.type)
            branches = (self.cast(yes, type), self.cast(no, type))
            return Node(kind, node.at, args=(self.cast(condition, "bool"), *branches), type=type)
        if kind in ("&&", "||", "u!"):
            return Node(
                kind, node.at, args=tuple(self.cast(arg, "bool") for arg in args), type="bool"
            )
        if kind in ("%", "<<", ">>", "&", "|", "^", "u~"):
            for arg in args:
                if is_floating(arg.type):
                    self.source.fail(
                        node.at,
                        f"{kind.removeprefix('u')} takes integers, one operand is "
                        f"{TYPES[arg.type]}" + ("; fmod takes these" if kind == "%" else ""),
                        TypeError,
                    )
        if kind in ("<<", ">>"):  # of the left operand's type
            type = common(args[0].type, "int32")
            right = common(args[1].type, "int32")
            return Node(
                kind, node.at, args=(self.cast(args[0], type), self.cast(args[1], right)), type=type
            )
        type = functools.reduce(common, (arg.type for arg in args), "int32")
        operands = tuple(self.cast(arg, type) for arg in args)
        compares = kind in ("==", "!=", "<", "<=", ">", ">=")
        return Node(kind, node.at, args=operands, type="bool" if compares else type)


# ---- Typed kernels -------------------------------------------------------------------------------


class Kernel:
    """A Program with types."""

    def __init__(self, program: Program, assignments: list[Assignment], real: str) -> None:
        self.program, self.assignments, self.real = program, assignments, real
        #: Type of every name that is assigned, locals too.
        self.types = {a.target: a.value.type for a in assignments}

    def cpp(self) -> str:
        """The statements in C++. Inputs are variables v_<name> that exist already."""
        lines = []
        for a in self.assignments:
            type = f"{TYPES[a.value.type]} " if a.first else ""
            lines.append(f"{type}v_{a.target} = {_cpp(a.value)};")
        return "\n".join(lines)

    def evaluate(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The names that were assigned, from arrays or NumPy scalars of the types of the inputs.

        Call it under ``np.errstate(all="ignore")``.
        """
        known = dict(values)
        for a in self.assignments:
            known[a.target] = _value(a.value, known)
        return known


def _cpp(node: Node) -> str:
    if node.kind == "name":
        return f"v_{node.text}"
    if node.kind == "number":
        return _cpp_number(node)
    args = [_cpp(arg) for arg in node.args]
    if node.kind == "cast":
        if node.type == "bool":
            return f"({args[0]} != 0)"
        return f"static_cast<{TYPES[node.type]}>({args[0]})"
    if node.kind == "?:":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if node.kind.startswith("u"):
        return f"({node.kind[1:]}{args[0]})"
    if node.kind == "call":
        return _cpp_call(node, args)
    return f"({args[0]} {node.kind} {args[1]})"


def _cpp_call(node: Node, args: list[str]) -> str:
    function, type = FUNCTIONS[node.text], node.args[0].type
    if function.result == "same":
        if is_floating(type):
            name = {"abs": "fabs", "min": "fmin", "max": "fmax"}[node.text]
            return f"{name}{'f' if type == 'float32' else ''}({', '.join(args)})"
        if node.text == "abs":
            return args[0] if type.startswith("u") else f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        less = "<" if node.text == "min" else ">"
        return f"({args[0]} {less} {args[1]} ? {args[0]} : {args[1]})"
    single = type == "float32" and function.result != "bool"
    return f"{function.cpp}{'f' if single else ''}({', '.join(args)})"


def _cpp_number(node: Node) -> str:
    if node.type == "bool":
        return node.text
    if not is_floating(node.type):
        suffix = ("u" if node.type.startswith("u") else "") + ("ll" if "64" in node.type else "")
        return f"{node.text}{suffix}"
    value = float(_NUMPY[node.type].type(CONSTANTS.get(node.text, node.text)))
    bits = {"float32": ("<u4", "__int_as_float"), "float64": ("<u8", "__longlong_as_double")}
    if math.isfinite(value):
        return value.hex() + ("f" if node.type == "float32" else "")
    view, function = bits[node.type]
    return f"{function}({int(np.array(value, _NUMPY[node.type]).view(view))}ll)"


_BINARY: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "<<": np.left_shift,
    ">>": np.right_shift,
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
    "?:": np.where,
    "u-": np.negative,
    "u+": np.positive,
    "u!": np.logical_not,
    "u~": np.invert,
}


def _value(node: Node, known: Mapping[str, Any]) -> Any:
    if node.kind == "name":
        return known[node.text]
    if node.kind == "number":
        if node.type == "bool":
            return np.bool_(node.text == "true")
        text = CONSTANTS.get(node.text, node.text)
        return _NUMPY[node.type].type(text if is_floating(node.type) else int(text))
    args = [_value(arg, known) for arg in node.args]
    if node.kind == "cast":
        return args[0] != 0 if node.type == "bool" else args[0].astype(_NUMPY[node.type])
    if node.kind == "call":
        return FUNCTIONS[node.text].numpy(*args)
    if node.kind == "/":
        return np.divide(*args) if is_floating(node.type) else _quotient(*args)
    if node.kind == "%":
        return np.fmod(*args)  # the sign of the dividend, as in C
    if node.kind in ("<<", ">>"):
        args[1] = args[1].astype(args[0].dtype)
    return _BINARY[node.kind](*args)


def _quotient(a: Any, b: Any) -> Any:
    """Towards zero, as in C; NumPy's goes down."""
    if a.dtype.kind == "u":
        return a // b
    return (a - np.fmod(a, b)) // b
