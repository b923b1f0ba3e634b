"""`zkmq bench`: the engine and its peers side by side on one server, taking turns, as ratios with their spread."""
