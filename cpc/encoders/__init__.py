"""Encoders g_enc, which map observations to latents; one for each type of observation."""

from cpc.encoders.audio import AudioEncoder
from cpc.encoders.backbone import Backbone
from cpc.encoders.encoder import Encoder
from cpc.encoders.frames import FrameEncoder
from cpc.encoders.gradients import GradientTrunk
from cpc.encoders.mel import MelEncoder
from cpc.encoders.patches import PatchEncoder
from cpc.encoders.resnet import ResNetTrunk
from cpc.encoders.sentences import SentenceEncoder
from cpc.encoders.signals import SignalEncoder
from cpc.encoders.spectral import MFCC, LogMel
from cpc.encoders.tiny import TinyTrunk
from cpc.encoders.tokens import TokenEncoder
from cpc.encoders.vectors import VectorEncoder

__all__ = [
    "MFCC",
    "AudioEncoder",
    "Backbone",
    "Encoder",
    "FrameEncoder",
    "GradientTrunk",
    "LogMel",
    "MelEncoder",
    "PatchEncoder",
    "ResNetTrunk",
    "SentenceEncoder",
    "SignalEncoder",
    "TinyTrunk",
    "TokenEncoder",
    "VectorEncoder",
]
