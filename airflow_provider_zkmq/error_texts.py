"""What the text of an error has in common with those of other tasks: what differs from task to task is masked."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: What kind of error it is: an exception's name, as the engine writes it before the colon, or how a command ended.
#: Other words before a colon have no digits in them, or else each task might have an error of its own kind; so has the
#: last part of a name with dots.
_NAMED: Final = r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Failed)(?=:\s|\s*$)"
_DOTTED: Final = r"(?:[A-Za-z_]\w*\.)+[A-Z][A-Za-z_]+(?=:\s)"
KIND: Final = rf"^\s*({_NAMED}|{_DOTTED}|[A-Za-z_][A-Za-z_.]+(?=:\s)|exit code \d+|ended by signal \d+)"
#: The kind and the colon, of which the masked text is not to speak again.
HEAD: Final = rf"{KIND}(?::\s*)?"
#: Numbers that tell one error from another stay: of HTTP and the like, of exit codes, of the operating system.
_CODE_NUMBER: Final = r"(?<!code )(?<!status )(?<!HTTP )(?<!rrno )(?<!signal )"
#: What the task's own id is taken out by, before everything else: the id stands between the two.
TASK: Final = "<task>"
_BEFORE_ID: Final = rf"{_CODE_NUMBER}(?<![A-Za-z0-9_])"
_AFTER_ID: Final = r"(?![A-Za-z0-9_])"
#: In this order, each with what stands in the place.
MASKS: Final = (
    (r"\s+", " "),
    (rf"[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^\s'\"<>]|{TASK})+", "<url>"),
    (r"(?<![\w\\])'(?:[^'\\]|\\.)*+'(?!\w)", "<quoted>"),
    (r"(?<![\w\\])\"(?:[^\"\\]|\\.)*+\"(?!\w)", "<quoted>"),
    (r"[‘“«][^’”»]*+[’”»]", "<quoted>"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)", "<time>"),
    (r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+", "<address>"),
    (rf"(?<![\w<>.])(?:~|\.{{1,2}})?(?:/(?:[\w.@%+=,~-]|{TASK})+)+/?", "<path>"),
    (r"\b[A-Za-z]:\\[^\s'\"<>|]+", "<path>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b", "<address>"),
    (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (
        _CODE_NUMBER
        + r"(?<![\w<.])[-+]?\d[\d_,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)%?(?! (?:Client|Server) Error)",
        "<number>",
    ),
    (_CODE_NUMBER + r"(?<![\w<])(?=[\w.:-]*\d)(?=[\w.:-]*[A-Za-z_:-])[\w]+(?:[.:-]\w+)*+", "<id>"),
)


_KIND: Final = re.compile(KIND)
_HEAD: Final = re.compile(HEAD)
_MASKS: Final = [(re.compile(pattern), mask) for pattern, mask in MASKS]


def masked(error: str, task_id: str) -> tuple[str, str]:
    """The kind of an error, and what its text has in common with those of other tasks."""
    known = error
    if task_id in error:
        known = re.sub(f"{_BEFORE_ID}{re.escape(task_id)}{_AFTER_ID}", lambda _: TASK, error)
    return _masked(known)


@lru_cache(maxsize=4_096)
def _masked(known: str) -> tuple[str, str]:
    kind, text = _KIND.match(known), _HEAD.sub("", known)
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return kind[1] if kind else "", text.strip()
