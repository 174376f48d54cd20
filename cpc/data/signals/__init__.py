"""Signals: arrays of time by channels, from sensors."""
