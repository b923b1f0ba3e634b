"""`asyncio`, imported on first use: a process without an event loop does without it, and its two megabytes."""

import importlib


def __getattr__(name: str) -> object:
    value = globals()[name] = getattr(importlib.import_module("asyncio"), name)
    return value
