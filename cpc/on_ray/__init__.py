"""Ray as a launcher of ranks (`launch.py`) and for work on many files (`spread.py`); only this folder imports Ray."""
