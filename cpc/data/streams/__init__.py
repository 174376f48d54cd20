"""Streams of batch indices: pure functions of (seed, index), per rank, which resume exactly."""
