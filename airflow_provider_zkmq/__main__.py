"""The entry point of ``zkmq``, also as ``python -m airflow_provider_zkmq``: it imports the command line itself."""

from __future__ import annotations

import os
import sys


def entry() -> None:
    """Run the command line, and exit. Ctrl-C ends it in silence, also while its modules are still imported."""
    try:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # whoever started this process has closed it
                setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        from .cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    entry()
