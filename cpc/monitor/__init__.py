"""The monitor: a local page that shows runs while they train. It does not import torch, to save memory."""
