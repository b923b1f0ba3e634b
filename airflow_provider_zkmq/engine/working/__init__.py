"""Workers: claim, run a handler, settle, until told to stop. Those of event loops are imported on first use."""

from ...lazy_imports import lazily

__all__, __getattr__ = lazily(__name__)
