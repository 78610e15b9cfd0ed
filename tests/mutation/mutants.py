"""Small mistakes that a program can make on purpose in a source file, one at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# what a module says of itself to readers and type checkers changes nothing that runs
SILENT = {"annotation", "returns", "decorator_list", "type_params", "msg"}
# keywords that matter on a GPU only, or that a call cannot do without (None: **everything)
NO_MATTER = {None, "device", "devices", "non_blocking", "pin_memory"}


@dataclass(frozen=True)
class Mutant:
    """One mistake: the function that it is in, what it changes, and the whole file with it."""

    where: str
    line: int
    change: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    found = []
    tree = ast.parse(source)
    for path, where in _nodes(tree, (), ""):
        for variant in range(len(_changed(_at(tree, path)))):
            mutated = copy.deepcopy(tree)
            old = ast.unparse(_at(tree, path))
            new = _changed(_at(mutated, path))[variant]
            _put(mutated, path, new)
            change = f"{_short(old)} -> {_short(ast.unparse(new))}"
            found.append(
                Mutant(where, _at(tree, path).lineno, change, ast.unparse(ast.fix_missing_locations(mutated)))  # type: ignore[attr-defined]
            )
    return found


Path = tuple[tuple[str, int | None], ...]


def _nodes(node: ast.AST, path: Path, where: str) -> Iterator[tuple[Path, str]]:
    """Where something can be changed, outside of what is silent."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}" if where else node.name
    if path and _changed(node):
        yield path, where or "module"
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):  # the words of a message
        return
    for field, value in ast.iter_fields(node):
        if field in SILENT:
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, (*path, (field, i)), where)


def _at(tree: ast.AST, path: Path) -> ast.AST:
    node = tree
    for field, i in path:
        value = getattr(node, field)
        node = value if i is None else value[i]
    return node


def _put(tree: ast.AST, path: Path, new: ast.AST) -> None:
    parent, (field, i) = _at(tree, path[:-1]), path[-1]
    if i is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[i] = new


def _changed(node: ast.AST) -> list[ast.AST]:
    """What may stand in the place of ``node``; parts of it are used again."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            return [ast.Pass()]
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return [ast.Pass()]
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            return [ast.Compare(node.left, [SWAPPED[type(op)]()], node.comparators)]  # type: ignore[list-item]
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            return [ast.BinOp(node.left, SWAPPED[type(op)](), node.right)]  # type: ignore[arg-type]
        case ast.BoolOp(op=op):
            return [ast.BoolOp(SWAPPED[type(op)](), node.values)]  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return [node.operand]
        case ast.If(test=test) if not isinstance(test, ast.Compare):
            return [ast.If(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)]
        case ast.IfExp():
            return [ast.IfExp(node.test, node.orelse, node.body)]
        case ast.Constant(value=bool(flag)):
            return [ast.Constant(not flag)]
        case ast.Constant(value=int(number)):
            return [ast.Constant(number + 1)]
        case ast.Call(keywords=[_, *_]):
            return [
                ast.Call(node.func, node.args, [k for k in node.keywords if k is not dropped])
                for dropped in node.keywords
                if dropped.arg not in NO_MATTER and not _default(dropped.value)
            ]
    return []


def _default(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in (None, True, False)


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= 90 else f"{line[:87]}..."
