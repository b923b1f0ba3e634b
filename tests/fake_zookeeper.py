"""What moved to `tests.unit.world`."""

from tests.unit.world import *  # noqa: F403
