"""Models as transformers for scikit-learn's pipelines: trained on arrays, or read from a folder."""

from cpc.sklearn.features import CPCFeatures
from cpc.sklearn.transformer import CPCTransformer

__all__ = ["CPCFeatures", "CPCTransformer"]
