"""Which look-ups of an SQL text do not name the tenant.

A text is cut into words, and by parentheses and set operations into query blocks. In each block
every reference to a table with tenants must be tied, by equalities that hold whatever else does, to
something that is no such table of the same block: a parameter, a variable, a row of another block.
What is tied to ``gateway.tenants`` alone is tied to nothing, unless that is tied itself, or asked
for by its name. An ``insert`` must list the column.

It reads no more SQL than is written here, and where it cannot tell it reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["untied"]

_WORDS = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\$[0-9]+|[A-Za-z_][A-Za-z0-9_]*|[0-9.]+"
    r"|::|<>|<=|>=|:=|\|\||.",
    re.DOTALL,
)
_BETWEEN = frozenset({"union", "intersect", "except"})
_CLAUSES = frozenset(
    {
        *("select", "from", "where", "set", "on", "join", "values", "returning", "group"),
        *("order", "limit", "having", "using", "into", "update", "insert", "delete"),
        *("with", "if", "when", "then", "else", "perform", "do", "loop"),
    }
)
_NO_ALIAS = _CLAUSES | frozenset(
    {
        *("cross", "left", "right", "inner", "full", "lateral", "as", "for", "offset"),
        *("natural", "conflict", "default", "and", "or"),
    }
)
_READS = frozenset({"from", "join", "update", "into", "using", "only", ","})

Word: TypeAlias = "str | Group"


@dataclass(eq=False)
class Group:
    """What stands in one pair of parentheses."""

    words: list[Word] = field(default_factory=list)


@dataclass(frozen=True)
class _Ref:
    table: str
    alias: str
    inserts: bool
    columns: Group | None


def untied(text: str, tables: frozenset[str]) -> list[str]:
    """``table alias`` of each reference that is not tied, in order. ``tables``: those with tenants,
    ``tenants`` among them."""
    found = []
    for statement in _statements(text):
        for block in _blocks(statement):
            found += [f"{ref.table} {ref.alias}" for ref in _loose(block, tables)]
    return found


# -- from text to blocks


def _statements(text: str) -> Iterator[Group]:
    """By semicolons, and where a loop of PL/pgSQL begins or ends."""
    stack = [Group()]
    for word in _words(text):
        if word == "(":
            stack[-1].words.append(inner := Group())
            stack.append(inner)
        elif word == ")":
            stack.pop()
        elif word in (";", "loop", "begin") and len(stack) == 1:
            yield stack.pop()
            stack.append(Group())
        else:
            stack[-1].words.append(word)
    assert len(stack) == 1, "parentheses do not match"
    yield stack.pop()


def _words(text: str) -> Iterator[str]:
    """In lower case; a text in quotes is ``''``, so that nothing in it counts."""
    for match in _WORDS.finditer(text):
        word = match[0]
        if word.isspace() or word.startswith(("--", "/*")):
            continue
        yield "''" if word.startswith("'") else word.lower()


def _blocks(group: Group) -> Iterator[list[Word]]:
    """Its own, one by one where they are united, and all within it."""
    block: list[Word] = []
    for word in group.words:
        if isinstance(word, str) and word in _BETWEEN:
            yield block
            block = []
        else:
            block.append(word)
        if isinstance(word, Group):
            yield from _blocks(word)
    yield block


# -- one block


def _loose(block: Sequence[Word], tables: frozenset[str]) -> list[_Ref]:
    refs = list(_refs(block, tables))
    tied = {ref for ref in refs if ref.inserts and _lists_tenant(ref)}
    nodes = {ref.alias: ref for ref in refs}
    pairs = list(_equalities(block, refs))
    changed = True
    while changed:
        changed = False
        for ref, other in pairs:
            if ref not in tied and (other is None or nodes[other] in tied):
                tied.add(ref)
                changed = True
    return [ref for ref in refs if ref not in tied]


def _refs(block: Sequence[Word], tables: frozenset[str]) -> Iterator[_Ref]:
    for at, word in enumerate(block):
        if word != "gateway" or at + 2 >= len(block) or block[at + 1] != ".":
            continue
        name, behind = block[at + 2], list(block[at + 3 :])
        if not isinstance(name, str) or name not in tables:
            continue
        before = block[at - 1] if at else None
        inserts = before == "into"
        if before in (".", "::") or (not inserts and isinstance(next(iter(behind), None), Group)):
            continue  # a function, or a cast
        if not behind and before not in _READS:
            continue  # the type of a variable, at its declaration
        if behind[:1] == ["as"]:
            behind = behind[1:]
        alias = behind[0] if behind and isinstance(behind[0], str) else name
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", alias) or alias in _NO_ALIAS:
            alias = name
        columns = next((word for word in behind[:2] if isinstance(word, Group)), None)
        yield _Ref(name, alias, inserts, columns if inserts else None)


def _lists_tenant(ref: _Ref) -> bool:
    return ref.columns is not None and _lists([ref.columns], "tenant")


def _equalities(block: Sequence[Word], refs: Sequence[_Ref]) -> Iterator[tuple[_Ref, str | None]]:
    """Which reference is tied to what: the alias of another in this block, or ``None`` for what is
    none."""
    reading = [ref for ref in refs if not ref.inserts]
    for clause in _clauses(block):
        yield from _of_clause(clause, reading)


def _clauses(block: Sequence[Word]) -> Iterator[list[Word]]:
    clause: list[Word] = []
    for word in block:
        if isinstance(word, str) and word in _CLAUSES:
            yield clause
            clause = [word]
        else:
            clause.append(word)
    yield clause


def _of_clause(clause: Sequence[Word], refs: Sequence[_Ref]) -> Iterator[tuple[_Ref, str | None]]:
    # What only one side of an "or" says does not hold; nor does what a select list computes.
    if "or" in clause or "not" in clause[:1] or clause[:1] in (["select"], ["set"], ["returning"]):
        return
    if clause[:1] == ["using"] and _lists(clause[1:2], "tenant"):
        yield from ((one, other.alias) for one in refs for other in refs if one != other)
    for at, word in enumerate(clause):
        if word == "=" and 0 < at < len(clause) - 1:
            yield from _tied(_left(clause, at), _right(clause, at), refs)
        elif word == "in" and at and clause[at - 1] != "not":
            yield from _tied(_left(clause, at), [], refs)
        elif isinstance(word, Group) and not _is_query(word) and clause[at - 1 : at] != ["not"]:
            yield from _of_clause(word.words, refs)


def _lists(words: Sequence[Word], column: str) -> bool:
    return any(isinstance(word, Group) and column in word.words for word in words)


def _is_query(group: Group) -> bool:
    return bool(group.words) and group.words[0] in ("select", "with", "values")


def _left(clause: Sequence[Word], at: int) -> list[Word]:
    if isinstance(clause[at - 1], Group):
        return _first(clause[at - 1])
    start = at - 3 if at >= 3 and clause[at - 2] == "." else at - 1
    return list(clause[start:at])


def _right(clause: Sequence[Word], at: int) -> list[Word]:
    if isinstance(clause[at + 1], Group):
        return _first(clause[at + 1])
    end = at + 4 if at + 2 < len(clause) and clause[at + 2] == "." else at + 2
    return list(clause[at + 1 : end])


def _first(group: Word) -> list[Word]:
    """Of a row: what its first column, where the tenant stands, is compared with."""
    assert isinstance(group, Group)
    if _is_query(group):
        return []
    words = group.words
    return words[: words.index(",")] if "," in words else words


def _tied(
    left: list[Word], right: list[Word], refs: Sequence[_Ref]
) -> Iterator[tuple[_Ref, str | None]]:
    for one, other in ((left, right), (right, left)):
        ref = _tenant_of(one, refs)
        if ref is not None:
            meant = _tenant_of(other, refs)
            yield ref, meant.alias if meant is not None else None


def _tenant_of(words: list[Word], refs: Sequence[_Ref]) -> _Ref | None:
    """The reference whose tenant this is; of ``tenants`` the name will do."""
    for ref in refs:
        names = ("tenant", "name") if ref.table == "tenants" else ("tenant",)
        if words in [[ref.alias, ".", name] for name in names]:
            return ref
        if len(refs) == 1 and words in [[name] for name in names]:
            return ref
    return None
