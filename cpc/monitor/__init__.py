"""The monitor: a local page that shows runs while they train; it does not import torch, to use little memory."""
