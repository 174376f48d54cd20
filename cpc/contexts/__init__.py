"""g_ar: latents to contexts, strictly causal; all keep to the protocol of `cpc.contexts.context.Context`."""

from cpc.contexts.context import Context, State
from cpc.contexts.identity import Identity
from cpc.contexts.pixel_cnn import PixelCNN
from cpc.contexts.recurrent import GRU, LSTM
from cpc.contexts.transformer import CausalTransformer

__all__ = [
    "GRU",
    "LSTM",
    "CausalTransformer",
    "Context",
    "Identity",
    "PixelCNN",
    "State",
]
