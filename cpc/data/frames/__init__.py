"""Frames: recorded episodes of environments, cut into windows of frame stacks, and the state behind them."""
