"""Everything that a GPU is asked: `python -m benchmarks.gpu`; see `__main__.py`."""
