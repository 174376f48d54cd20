"""Waveforms: files, manifests, windows, alignments."""
