"""What is left of an error's text once all that differs from task to task is masked, so that the same errors meet.

The patterns are read by Java's and Python's regular expressions alike: Spark masks where the rows are.
"""

from __future__ import annotations

from typing import Final

#: Longer texts are cut before they are masked, as only their beginning is looked at.
LOOKED_AT: Final = 500
#: What kind of error it is: an exception's name, as the engine writes it before the colon, or how a command ended.
#: Other words before a colon have no digits in them, or else each task might have an error of its own kind; so has the
#: last part of a name with dots.
_NAMED: Final = r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Failed)(?=:\s|\s*$)"
_DOTTED: Final = r"(?:[A-Za-z_]\w*\.)+[A-Z][A-Za-z_]+(?=:\s)"
KIND: Final = rf"^\s*({_NAMED}|{_DOTTED}|[A-Za-z_][A-Za-z_.]+(?=:\s)|exit code \d+|ended by signal \d+)"
#: The kind and the colon, of which the masked text is not to speak again.
HEAD: Final = rf"{KIND}(?::\s*)?"
#: Numbers that tell one error from another stay: of HTTP and the like, of exit codes, of the operating system.
_TELLING: Final = r"(?<!code )(?<!status )(?<!HTTP )(?<!rrno )(?<!signal )"
#: In this order, each with what stands in the place.
MASKS: Final = (
    (r"\s+", " "),
    (r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"(?<![\w\\])'(?:[^'\\]|\\.)*+'(?!\w)", "<quoted>"),
    (r"(?<![\w\\])\"(?:[^\"\\]|\\.)*+\"(?!\w)", "<quoted>"),
    (r"[‘“«][^’”»]*+[’”»]", "<quoted>"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)", "<time>"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<address>"),
    (r"(?<![\w<>.])(?:~|\.{1,2})?(?:/[\w.@%+=,~-]+)+/?", "<path>"),
    (r"\b[A-Za-z]:\\[^\s'\"<>|]+", "<path>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b", "<address>"),
    (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (
        _TELLING + r"(?<![\w<.])[-+]?\d[\d_,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)%?(?! (?:Client|Server) Error)",
        "<number>",
    ),
    (_TELLING + r"(?<![\w<])(?=[\w.:-]*\d)(?=[\w.:-]*[A-Za-z_:-])[\w]+(?:[.:-]\w+)*+", "<id>"),
)
