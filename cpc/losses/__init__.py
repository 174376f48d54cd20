"""How scores become a loss."""

from cpc.losses.contrast import Contrast, contrast
from cpc.losses.info_nce import InfoNCE, info_nce

__all__ = ["Contrast", "InfoNCE", "contrast", "info_nce"]
