"""Feature maps phi of kernels: what a sampler needs to sum over many classes at once."""

from cpc.candidates.kernels.fourier import RandomFourier
from cpc.candidates.kernels.kernel_map import KernelMap
from cpc.candidates.kernels.maclaurin import RandomMaclaurin
from cpc.candidates.kernels.positive import PositiveRandomFeatures
from cpc.candidates.kernels.projections import PROJECTIONS
from cpc.candidates.kernels.quadratic import Quadratic

__all__ = ["PROJECTIONS", "KernelMap", "PositiveRandomFeatures", "Quadratic", "RandomFourier", "RandomMaclaurin"]
