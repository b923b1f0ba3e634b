"""Procedures that change nothing."""
