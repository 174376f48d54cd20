"""Context networks g_ar, which map latents to contexts; see `cpc.contexts.context.Context`."""

from cpc.contexts.bidirectional import Bidirectional
from cpc.contexts.context import Context, State
from cpc.contexts.identity import Identity
from cpc.contexts.pixel_cnn import PixelCNN
from cpc.contexts.recurrent import GRU, LSTM
from cpc.contexts.state_space import StateSpace
from cpc.contexts.transformer import CausalTransformer

__all__ = [
    "GRU",
    "LSTM",
    "Bidirectional",
    "CausalTransformer",
    "Context",
    "Identity",
    "PixelCNN",
    "State",
    "StateSpace",
]
