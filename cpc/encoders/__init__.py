"""g_enc: observations to latents, one encoder per kind of observation."""

from cpc.encoders.audio import AudioEncoder
from cpc.encoders.spectral import MFCC, LogMel
from cpc.encoders.vectors import VectorEncoder

__all__ = ["MFCC", "AudioEncoder", "LogMel", "VectorEncoder"]
