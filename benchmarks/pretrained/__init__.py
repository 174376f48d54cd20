"""How the models of `cpc models` are made: `python -m benchmarks.pretrained NAME`."""
