"""Combinations of settings in which every pair of values comes up."""
import itertools
import random

from harness import ALL


def pairs(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def covering_array(factors):
    """Rows in which every pair of values of two factors comes up, found greedily; the same ones every time."""
    numbers = random.Random(5)
    left = set()
    for (one, ones), (two, twos) in itertools.combinations(factors.items(), 2):
        for a, b in itertools.product(ones, twos):
            left |= pairs({one: a, two: b})
    rows = []
    while left:
        first = dict(min(left, key=str))  # at least this pair
        rest = [name for name in factors if name not in first]
        candidates = []
        for _ in range(40):
            row = dict(first)
            for name in numbers.sample(rest, len(rest)):
                row[name] = max(factors[name], key=lambda value, n=name, r=row: (
                    len(pairs({**r, n: value}) & left), numbers.random()))
            candidates.append(row)
        rows.append(max(candidates, key=lambda row: len(pairs(row) & left)))
        left -= pairs(rows[-1])
    return rows


def chosen_rows(factors):
    """The rows of a covering array; unless ALL, the half that comes first, which has four of five pairs and every value."""
    rows = covering_array(factors)
    return rows if ALL else rows[:-(-len(rows) // 2)]
