"""Every speed figure that the documents quote: `python -m benchmarks.NAME` prints a table and a line of JSON."""
