"""Signals: recordings of time by channels, their labels, packs."""
