"""The names in a PromQL expression: enough of the language to find out which metrics it reads."""

from __future__ import annotations

import re

_WORDS = frozenset(
    {
        "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool",
        "sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev", "rate", "irate",
        "increase", "delta", "deriv", "changes", "resets", "histogram_quantile", "clamp_min", "clamp_max",
        "clamp", "abs", "ceil", "floor", "round", "time", "vector", "scalar", "absent", "absent_over_time",
        "max_over_time", "min_over_time", "avg_over_time", "sum_over_time", "label_replace", "sort",
        "sort_desc", "inf", "nan", "label_values",
    }
)  # fmt: skip
_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def metric_names_in(expression: str) -> set[str]:
    """Return the metrics that `expression` reads; labels, strings, durations, functions and variables left out."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\$\{?\w+\}?", "", text)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    text = re.sub(r"\boffset\s+\w+", "", text)
    words = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", text)
    return {word for word in words if word.lower() not in _WORDS}


def labels_in(expression: str) -> set[str]:
    """Return the labels that `expression` selects or groups by."""
    found: set[str] = set()
    for inside in re.findall(r"\{([^}]*)\}", re.sub(r"\$\{\w+\}", "", expression)):
        found |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
    for inside in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression):
        found |= {word.strip() for word in inside.split(",") if word.strip()}
    return found


def base_name(name: str, histograms: set[str]) -> str:
    """Return the name of the histogram that a series belongs to, or `name` itself."""
    for suffix in _HISTOGRAM_SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in histograms:
            return name.removesuffix(suffix)
    return name


def is_balanced(expression: str) -> bool:
    """Tell whether brackets match."""
    stack: list[str] = []
    for letter in re.sub(r'"(?:[^"\\]|\\.)*"', "", expression):
        if letter in "([{":
            stack.append({"(": ")", "[": "]", "{": "}"}[letter])
        elif letter in ")]}" and (not stack or stack.pop() != letter):
            return False
    return not stack
