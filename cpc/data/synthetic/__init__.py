"""Corpora that need no download: synthesised speech, photographs of installed packages, prose."""
