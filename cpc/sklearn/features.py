"""A trained model as a step of scikit-learn's pipelines. n waveforms, S samples, D feature dim."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin

from cpc.checkpoint import load_pretrained
from cpc.data.audio.features import Features
from cpc.model import CPC


class CPCFeatures(TransformerMixin, BaseEstimator):
    """Waveforms to the mean of their features, one vector each.

    `make_pipeline(CPCFeatures("runs/mine"), LogisticRegression())` learns from a list of waveforms. Nothing is learnt
    here: `fit` reads the model, anew at every call. Parameters are kept as they are given, so that the step can be
    cloned, searched and pickled.

    Args:
        model: a run's folder, a model's folder, or a model of audio.
        features: contexts `c`, latents `z`, or both side by side, `zc`.
        device: where to compute.

    Attributes:
        n_features_out_: D.
        sample_rate_hz_: of the waveforms that the model takes.
    """

    def __init__(
        self, model: str | Path | CPC, *, features: Literal["c", "z", "zc"] = "c", device: str = "cpu"
    ) -> None:
        self.model = model
        self.features = features
        self.device = device

    def fit(self, X: Any = None, y: Any = None) -> "CPCFeatures":
        """Read the model, and look at waveforms if there are some.

        Raises:
            ValueError: as `cpc.load_pretrained` and `transform`; on a model that does not encode audio, or unknown
                features.
        """
        self._read_for: tuple[Any, ...] | None = None  # a folder may have been trained on
        reader = self._reader()
        if X is not None:
            _waves(X, reader)
        return self

    def transform(self, X: Any) -> Float32[np.ndarray, "n D"]:
        """Features of waveforms.

        Args:
            X: waveforms `[S]` of any lengths at `sample_rate_hz_`, of amplitudes from -1 to 1 as training reads them;
                an array `[n, S]` is n of them. `scipy.io.wavfile` gives int16: divide it by 32768.

        Raises:
            ValueError: naming the waveform, if it is no row of finite numbers, of integers, or too short for a frame.
            TypeError: on sparse matrices.
        """
        reader = self._reader()
        return np.stack([reader(wave).mean(0) for wave in _waves(X, reader)])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """`c0`, `c1` and so on."""
        reader = self._reader()
        return np.array([f"{self.features}{place}" for place in range(reader.dim)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []  # float32, whatever comes
        return tags

    def _reader(self) -> Features:
        """Kept from call to call, and read again where a parameter has changed."""
        given = (self.model, self.features, self.device)
        if getattr(self, "_read_for", None) != given:
            model = self.model if isinstance(self.model, CPC) else load_pretrained(self.model, device=self.device)
            if model.encoder.modality != "audio":
                raise ValueError(
                    f"the model encodes {model.encoder.modality}, but waveforms are transformed: give one of audio"
                )
            self._kept = Features(self.features, model, device=self.device)
            self._read_for = given
        self.n_features_out_, self.sample_rate_hz_ = self._kept.dim, self._kept.sample_rate_hz
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        """Without what was read from a folder."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("_kept", "_read_for")}


def _waves(X: Any, reader: Features) -> list[np.ndarray]:
    if issparse(X):
        raise TypeError("waveforms are rows of numbers, not a sparse matrix: give X.toarray()")
    rows = np.asarray(X) if hasattr(X, "__array__") else list(X)
    if isinstance(rows, np.ndarray) and rows.ndim < 2 and rows.dtype != object:
        raise ValueError(f"X has the shape {rows.shape}. Reshape your data: [1, S] if it is one waveform")
    if len(rows) == 0:
        raise ValueError("there are no waveforms: give at least one")
    return [_checked(place, wave, reader) for place, wave in enumerate(rows)]


def _checked(place: int, wave: Any, reader: Features) -> np.ndarray:
    try:
        found = np.asarray(wave)
        if np.iscomplexobj(found):
            raise ValueError("Complex data not supported")
        if np.issubdtype(found.dtype, np.integer):
            raise ValueError(f"{found.dtype} are samples of a file, not amplitudes from -1 to 1: divide int16 by 32768")
        found = found.astype(np.float32)
    except (ValueError, TypeError) as error:
        raise ValueError(f"waveform {place} is no row of amplitudes: {error}") from error
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(
            f"waveform {place} has the shape {found.shape}: it must be [S], of finite numbers, without NaN or inf"
        )
    if int(reader.num_frames(np.array(len(found)))) < 1:
        raise ValueError(f"waveform {place} has {len(found)} samples, too few for a single frame")
    return found
