"""A trained model as a transformer for scikit-learn's pipelines."""

from cpc.sklearn.features import CPCFeatures

__all__ = ["CPCFeatures"]
