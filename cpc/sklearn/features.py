"""A trained model as a transformer for scikit-learn's pipelines. n waveforms, S samples, D feature dim."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin

from cpc.checkpoint import load_pretrained
from cpc.config.argument_rules import Choices
from cpc.data.features import Features
from cpc.data.tensors import find_device
from cpc.model import CPC
from cpc.sklearn.recordings import on_cpu, real_numbers
from cpc.sklearn.training import models_on_cpu


@dataclass(eq=False, repr=False)
class CPCFeatures(TransformerMixin, BaseEstimator):
    """A transformer that maps each waveform to the mean of its features.

    `make_pipeline(CPCFeatures("runs/mine"), LogisticRegression())` learns from a list of waveforms. `fit` does not
    train; each call of `fit` reads the model again. Parameters are stored unchanged, so that the step can be cloned,
    searched and pickled.

    Args:
        model: a run folder, a model folder, or a model of audio.
        features: contexts `c`, latents `z`, or both concatenated, `zc`.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N; the model is moved there.

    Attributes:
        n_features_out_: D.
        sample_rate_hz_: sample rate of the waveforms that the model reads.
    """

    model: str | Path | CPC
    _: KW_ONLY
    features: Literal["c", "z", "zc"] = "c"
    device: str = "auto"

    def fit(self, X: Any = None, y: Any = None) -> "CPCFeatures":
        """Read the model, and check the waveforms if any are given."""
        self._reader_key: tuple[Any, ...] | None = None  # read again, since training may have changed the folder
        reader = self._reader()
        if X is not None:
            _waves(X, reader)
        return self

    def transform(self, X: Any) -> Float32[np.ndarray, "n D"]:
        """Compute the features of waveforms.

        X holds waveforms `[S]` of any lengths at `sample_rate_hz_`, with amplitudes from -1 to 1 as in training; an
        array `[n, S]` is n waveforms. `scipy.io.wavfile` returns int16: divide it by 32768. A waveform that is no
        sequence of finite floats, or is too short for a frame, is a ValueError.
        """
        reader = self._reader()
        return np.stack([reader(wave).mean(0) for wave in _waves(X, reader)])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names `c0`, `c1` and so on."""
        reader = self._reader()
        return np.array([f"{self.features}{i}" for i in range(reader.dim)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []  # the output is always float32
        return tags

    def _reader(self) -> Features:
        """Return the model's reader, which is cached until a parameter changes."""
        key = (self.model, self.features, self.device)
        if getattr(self, "_reader_key", None) != key:
            model = self.model if isinstance(self.model, CPC) else load_pretrained(self.model)
            Choices(("audio",)).check("the modality of the model", model.encoder.modality)
            self._cached_reader = Features(self.features, model.to(find_device(self.device)))
            self._reader_key = key
        self.n_features_out_, self.sample_rate_hz_ = self._cached_reader.dim, self._cached_reader.sample_rate_hz
        return self._cached_reader

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the cached reader, and with a model on the CPU."""
        cached = ("_cached_reader", "_reader_key")
        return {name: value for name, value in models_on_cpu(super().__getstate__()).items() if name not in cached}


def _waves(X: Any, reader: Features) -> list[np.ndarray]:
    if issparse(X):
        raise TypeError("X is a sparse matrix, but waveforms must be dense: give X.toarray()")
    X = on_cpu(X)
    rows = np.asarray(X) if hasattr(X, "__array__") else list(X)
    if len(rows) == 0 or (isinstance(rows, np.ndarray) and rows.ndim < 2 and rows.dtype != object):
        raise ValueError(f"X has the shape {np.shape(rows)}. Reshape your data: [n, S], with n of at least 1")
    return [_check_wave(i, wave, reader) for i, wave in enumerate(rows)]


def _check_wave(index: int, wave: Any, reader: Features) -> np.ndarray:
    samples = real_numbers(wave, f"waveform {index}")
    if np.asarray(on_cpu(wave)).dtype.kind in "iu":
        problem = "holds integers, not floats from -1 to 1: divide int16 by 32768"
    elif samples.ndim != 1 or not np.isfinite(samples).all():
        problem = f"of shape {list(samples.shape)} must be [S], without NaN or inf"
    elif int(reader.num_frames(np.array(len(samples)))) < 1:
        problem = f"has {len(samples)} samples, too few for a single frame"
    else:
        return samples
    raise ValueError(f"waveform {index} {problem}")
