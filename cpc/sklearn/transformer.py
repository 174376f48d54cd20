"""An estimator that pretrains on arrays of signals. n recordings, T samples, C channels, F features."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from cpc.checkpoint import load_pretrained, read_config, save_pretrained
from cpc.config.argument_rules import Choices, Count, Natural, Positive, Range, check_values
from cpc.data.features import Features
from cpc.data.probe_data import check_pool, pool_vectors
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.recordings.windows import ArraySignals
from cpc.data.signals.arrays import transposed
from cpc.data.signals.channels import conversion
from cpc.data.signals.modality import Signals
from cpc.data.signals.recordings import Recordings
from cpc.data.store.contents import draw_splits, quiet
from cpc.data.store.fingerprints import merged
from cpc.data.tensors import find_device
from cpc.encoders.encoder import check_scale
from cpc.evaluation import held_out_bounds
from cpc.losses import EvalProtocol
from cpc.model import CPC
from cpc.sklearn.architecture import length_of_windows, new_model, num_windows, reach
from cpc.sklearn.recordings import check_table, column_names, list_recordings, on_cpu, read_recordings, similar_lengths
from cpc.sklearn.training import models_on_cpu, train


@dataclass(kw_only=True, eq=False, repr=False)
class CPCTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Contrastive predictive coding of signals: `fit` pretrains without labels, `transform` returns features.

    X is an array `[n, T, C]`, a list or Series of arrays `[T_i, C]`, or the same of one channel: an array `[n, T]` or a
    list of arrays `[T_i]`. numpy, torch and pandas are read alike, and names of columns are names of channels. An array
    `[n, T]` with more rows than columns is refused unless `num_channels` is 1, since it looks like one recording.

    Args:
        sample_rate_hz: samples per second.
        dim: width of latents and contexts.
        kernels: kernel sizes of the encoder's convolutions; None: chosen by the length of the recordings.
        strides: strides of the same convolutions; None: chosen likewise.
        front: what the encoder reads, see `cpc.encoders.SignalEncoder`.
        level_seconds: length of the encoder's moving average; None: eight hops.
        baseline_seconds: length of a longer average. The encoder also reads the difference from this average. None: it
            does not.
        num_channels: C; None: the number of channels of X. Recordings with more channels than samples look transposed,
            so give their C. 1: the rows of an array or data frame are recordings of one channel.
        units: unit of X, or the unit of each channel in the order of the model. X is converted to the units of the
            model `init_from`; a new model keeps these units. None: X is in the units of the model.
        num_steps: furthest step that is predicted; fewer steps are predicted if windows are too short.
        negatives: strategy of negatives, a name in `cpc.candidates.STRATEGIES`. None: `same_speaker` if every recording
            has a group, and the windows of every group fill three batches; then differences between subjects do not
            help. Otherwise `mixed`.
        window_samples: length of training windows; None: the length of the longest recording, but at most 128 latents.
        batch_size: windows per batch.
        max_steps: training steps; 0 leaves the network untrained.
        learning_rate: largest learning rate, after a tenth of the steps.
        valid_share: share of the groups that is held out to measure `bound_`; without groups, share of the recordings.
            0: nothing is held out.
        features: contexts `c`, latents `z`, or both beside each other, `zc`.
        pool: `mean`, `mean_std` or `segments:N` over the latents of a recording (`cpc.data.probe_data`).
        init_from: a model folder. Training then starts from its architecture, loss and weights, and ignores the
            parameters from `dim` to `negatives`. None: a new model.
        random_state: seed of weights, batches and held-out recordings.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        verbose: show a progress bar and lines about the data.

    Attributes:
        model_: the trained `cpc.CPC`, in eval mode.
        bound_: held-out `log N - L` of each step with ceiling and label, a `cpc.bounds.Bound`; None if `valid_share` is
            0, fewer than two groups have recordings that are long enough for the furthest step, or nothing is trained,
            negatives are of the same group, and a recording has no group.
        losses_: loss of each training step in nats.
        num_channels_: C.
        channel_names_: names of the channels, those of the model `init_from` or the columns of X; None: they have
            none. Data frames are read by these names, in any order of columns, and arrays by position.
        n_features_in_: T for `[n, T]`, C for recordings of channels.
        feature_names_in_: names of the columns of X, if X has data frames whose columns have names.

    Raises:
        ValueError: in `fit`, if recordings are too short to predict a step or look transposed, samples are missing, or
            units cannot be converted; in `transform`, if recordings have other channels than in `fit`.
    """

    sample_rate_hz: int | float = 1.0
    dim: int = 64
    kernels: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    front: Literal["raw", "level", "compand"] = "compand"
    level_seconds: int | float | None = None
    baseline_seconds: int | float | None = None
    num_channels: int | None = None
    units: str | Sequence[str] | None = None
    num_steps: Count = 8
    negatives: str | None = None
    window_samples: int | None = None
    batch_size: Count = 32
    max_steps: Natural = 500
    learning_rate: Positive = 1e-3
    valid_share: int | Annotated[float, Range(0, 1, is_below=True)] = 0.1
    features: Annotated[str, Choices(("c", "z", "zc"))] = "zc"
    pool: str = "mean_std"
    init_from: str | Path | None = None
    random_state: Any = None
    device: str = "auto"
    verbose: bool = False

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> "CPCTransformer":
        """Pretrain on the recordings X; `groups` has their subjects, each trained on or held out as a whole."""
        with quiet(not self.verbose), self._own_arguments():
            return self._fit(X, groups)

    def _fit(self, X: Any, groups: Any) -> "CPCTransformer":
        self._check_options()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = None if self.init_from is None else self._earlier_model(self.init_from)
            names = getattr(model.encoder, "channel_names", None) if model else None
            self.channel_names_ = None if names is None else list(names)
            recordings = self._recordings(X, is_fitting=True)
            lengths = np.array([len(recording) for recording in recordings])
            subjects = _group_names(groups, len(recordings))
            units = None if self.units is None else self._unit_list()
            model = model or new_model(self, self.num_channels_, units, lengths, subjects)
        Choices((model.encoder.channels,)).check(f"{self.init_from}: the number of channels of X", self.num_channels_)
        if names is None and self.channel_names_ is not None and hasattr(model.encoder, "set_channels"):
            model.encoder.set_channels(self.channel_names_, model.encoder.units)
        recordings = self._in_units_of(model, recordings)
        encoder, longest = model.encoder, int(lengths.max())
        window_samples = length_of_windows(self.window_samples, encoder, longest)
        is_long = reach(encoder, lengths, model.steps[-1].k)
        negatives = model.loss_part.training_strategies
        by_group = negatives[0].startswith("same_speaker")
        lacks_groups = by_group and "" in np.array(subjects)[is_long]
        if lacks_groups and self.max_steps and self.init_from is not None:
            raise ValueError(
                f"`init_from`={str(self.init_from)!r} has negatives of the same group: give `groups` to fit"
            )
        splits = self._splits(subjects, is_long, 0.0 if lacks_groups else float(self.valid_share), seed)
        num_train = int(num_windows(lengths, window_samples)[np.array(splits) == "train"].sum())
        data = Signals(
            source="(arrays)",
            sample_rate_hz=float(encoder.sample_rate_hz),
            window_seconds=window_samples / encoder.sample_rate_hz,
            batch_size=max(1, min(self.batch_size, num_train)),
            sampler="same_speaker" if by_group else "uniform",
            seed=seed,
        )
        num_latents, furthest = encoder.num_latents(window_samples), model.steps[-1].k
        if num_latents <= furthest:
            found = f"a window of {window_samples} samples gives {num_latents} latents"
            advice = "raise `window_samples`, use longer recordings or another model"
            raise ValueError(f"{found}, but the model predicts {furthest} steps ahead: {advice}")
        data.check(model)
        channels = self.channel_names_ or [str(channel) for channel in range(self.num_channels_)]
        labels: dict[str, Any] = {"channels": channels, "splits": splits, "groups": subjects}
        names, rate = [f"recording {row}" for row in range(len(recordings))], encoder.sample_rate_hz
        table = Recordings(source="arrays", names=names, sample_rate_hz=rate, **labels)
        corpus = RecordingCorpus(table, encoder, window_samples, partial(ArraySignals, recordings))
        for split in sorted({"train", "valid"} & set(splits)):
            is_computed = self.max_steps > 0 or split == "valid"
            data.check_split(corpus, split, negatives if is_computed else [], negatives[0])
        data.prepare(corpus, is_training=True)
        windows = data.initialisation_batch(corpus)
        if model.is_initialised:
            check_scale(encoder, windows)
        else:
            data.standardise(encoder, corpus)
            model.initialise_from(windows)
        model.to(find_device(self.device)).eval()
        self.losses_ = []
        if self.max_steps:
            self.losses_ = train(
                model,
                data.training(corpus, model),
                max_steps=self.max_steps,
                learning_rate=self.learning_rate,
                seed=seed,
                verbose=self.verbose,
            )
        protocol = EvalProtocol(negatives[0], model.loss_part.num_negatives)
        bounds = held_out_bounds(model, data.held_out(corpus, model), [protocol]) if "valid" in splits else {}
        self.bound_ = bounds.get(protocol)
        self.model_ = model
        earlier = {} if self.init_from is None else read_config(self.init_from)["provenance"].get("trained_on")
        trained_on = merged(data.trained_on(corpus) if self.max_steps else None, earlier)
        self._provenance = {"data": data.saved_settings} | ({"trained_on": trained_on} if trained_on else {})
        return self

    def transform(self, X: Any) -> Float32[np.ndarray, "n F"]:
        """Return one feature vector per recording. A vector does not depend on other recordings."""
        check_is_fitted(self)
        self._check_options()
        recordings = self._in_units_of(self.model_, self._recordings(X, is_fitting=False))
        lengths = np.array([len(recording) for recording in recordings])
        vectors = np.empty((len(recordings), self._n_features_out), np.float32)
        self.model_.encoder.is_scale_checked = False  # these recordings may have another scale than those of `fit`
        for rows in similar_lengths(lengths):
            features = self._encode([recordings[row] for row in rows])
            for row, latents in zip(rows, features, strict=True):
                vectors[row] = pool_vectors(latents[: self.model_.encoder.num_latents(int(lengths[row]))], self.pool)
        return vectors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # the output is always float32
        return tags

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that `cpc.load_pretrained`, the commands and `init_from` read."""
        check_is_fitted(self)
        held_out = [] if self.bound_ is None else [self.bound_.record(step=len(self.losses_))]
        save_pretrained(self.model_, folder, provenance={**self._provenance, "held_out": held_out})

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the model on the CPU."""
        return models_on_cpu(super().__getstate__())

    @property
    def _n_features_out(self) -> int:
        width = {"z": self.model_.encoder.dim, "c": self.model_.context.dim}
        num_vectors = {"mean": 1, "mean_std": 2}.get(self.pool) or int(self.pool.removeprefix("segments:"))
        return num_vectors * sum(width[feature] for feature in self.features)

    @contextmanager
    def _own_arguments(self) -> Iterator[None]:
        """Name arguments of this class in errors that name those of the data or of a part of the model."""
        own = dict.fromkeys(self.get_params()) | {"window_seconds": "window_samples", "group": "groups"}
        try:
            yield
        except ValueError as error:
            message = re.sub(
                r"`(?:\w+\.)?(\w+)`",
                lambda found: f"`{own[found[1]] or found[1]}`" if found[1] in own else found[0],
                str(error),
            )
            if message != str(error):
                error.args = (message,)
            raise

    def _check_options(self) -> None:
        check_values(type(self).__init__, self.get_params(deep=False))
        check_pool(self.pool, has_frames=False)

    def _recordings(self, X: Any, *, is_fitting: bool) -> list[Float32[np.ndarray, "_ C"]]:
        """Return recordings as arrays of channels. In `fit`, set number and names of the channels."""
        num_dims = getattr(X, "ndim", 2)
        if num_dims > 3 or (num_dims == 3 and len(X) == 0):
            raise ValueError(f"X has the shape {list(X.shape)}, but recordings are [n, samples, channels], n above 0")
        X = on_cpu(X)
        parts = list_recordings(X)
        if parts is None:
            return [rearrange(row, "t -> t 1") for row in self._rows(X, is_fitting=is_fitting)]
        columns = [names for names in map(column_names, parts) if names]
        channels = self.channel_names_ or (columns[0] if columns else None)
        if not is_fitting and self.channel_names_ is None and any(names != channels for names in columns):
            raise ValueError(f"data frames of X have other columns than {channels}, or in another order: sort them")
        recordings = read_recordings(parts, channels, None if is_fitting else self.num_channels_)
        if is_fitting:
            num_channels = recordings[0].shape[1]
            problem = transposed("X", max(map(len, recordings)), num_channels, "set `num_channels`")
            if self.num_channels not in (None, num_channels) or (problem and self.num_channels is None):
                raise ValueError(problem or f"X has {num_channels} channels, not `num_channels`={self.num_channels}")
            self.num_channels_: int = num_channels
            self.n_features_in_ = num_channels
            self.channel_names_, self._rows_are_recordings = channels, False
            if columns:
                self.feature_names_in_ = np.array(columns[0], dtype=object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        return recordings

    def _rows(self, X: Any, *, is_fitting: bool) -> Float32[np.ndarray, "n T"]:
        """Return the table X, whose rows are recordings of one channel."""
        num_channels = (self.num_channels or 1) if is_fitting else self.num_channels_
        if num_channels != 1:
            found = f"X has the shape {list(np.shape(X))}, one channel, but the model reads {num_channels} channels"
            raise ValueError(f"{found}: give [n, samples, channels], such as [X] for one recording")
        is_known = not is_fitting and self._rows_are_recordings  # scikit-learn compares the length of the rows
        if not is_known and self.num_channels is None:
            check_table(X)
        if is_fitting:
            self.num_channels_, self._rows_are_recordings = 1, True
        if is_fitting or is_known:
            return validate_data(self, X, dtype=np.float32, reset=is_fitting)
        return check_array(X, dtype=np.float32)

    def _in_units_of(self, model: CPC, recordings: list[np.ndarray]) -> list[Float32[np.ndarray, "_ C"]]:
        """Return the recordings in the units of the model."""
        if self.units is None:
            return recordings
        units, model_units = self._unit_list(), list(getattr(model.encoder, "units", None) or ())
        if not any(model_units) or len(units) != len(model_units):
            found = f"`units`={units} cannot be converted to those of the model, {model_units or None}"
            raise ValueError(f"{found}: give one for each channel, or None for X in the units of the model")
        factors = [conversion(own, wanted) for own, wanted in zip(units, model_units, strict=True)]
        if set(factors) == {1.0}:
            return recordings
        return [(recording * np.array(factors)).astype(np.float32) for recording in recordings]

    def _unit_list(self) -> list[str]:
        return [self.units] * self.num_channels_ if isinstance(self.units, str) else list(self.units or ())

    def _earlier_model(self, folder: str | Path) -> CPC:
        model = load_pretrained(folder)
        encoder, name = model.encoder, f"init_from={str(self.init_from)!r}"
        Choices(("signals",)).check(f"{name}: the modality", encoder.modality)
        Choices((encoder.sample_rate_hz,)).check(f"{name}: `sample_rate_hz`", self.sample_rate_hz)
        return model

    def _splits(self, names: list[str], is_long: np.ndarray, valid_share: float, seed: int) -> list[str]:
        """Return `train` or `valid` for recordings that reach the furthest step, and `short` for all others."""
        units = [name or f"recording {row}" for row, name in enumerate(names)]
        long_units = [unit for unit, is_used in zip(units, is_long, strict=True) if is_used]
        split_of = dict.fromkeys(long_units, "train")
        if valid_share > 0 and len(split_of) > 1:
            drawn = draw_splits(long_units, valid_share=valid_share, test_share=0.0, seed=seed)
            split_of = dict(zip(long_units, drawn, strict=True))
        return [split_of[unit] if is_used else "short" for unit, is_used in zip(units, is_long, strict=True)]

    def _encode(self, recordings: list[np.ndarray]) -> Sequence[Float32[np.ndarray, "T F"]]:
        """Return the features of recordings, which are padded to the longest unless the context would read padding."""
        reader = Features(self.features, self.model_.to(find_device(self.device)))  # type: ignore[arg-type]  # checked before
        if reader.reads_ahead:
            return [reader.encode_windows(recording[None])[0] for recording in recordings]
        x = np.full((len(recordings), max(map(len, recordings)), self.num_channels_), np.nan, np.float32)
        for row, recording in zip(x, recordings, strict=True):
            row[: len(recording)] = recording
        return list(reader.encode_windows(x))


def _group_names(groups: Any, num: int) -> list[str]:
    """Return the name of each recording's group; "" for None, NaN and pd.NA, which stand for an unknown group."""
    if groups is None:
        return [""] * num
    if np.shape(groups)[:1] != (num,) or getattr(groups, "ndim", 1) != 1:
        raise ValueError(f"groups has the shape {list(np.shape(groups))}: give one group for each recording, [{num}]")
    return ["" if _is_unknown(group) else str(group) for group in groups]


def _is_unknown(group: Any) -> bool:
    try:
        return group is None or bool(group != group)
    except TypeError:  # pd.NA is neither equal to itself nor not
        return True
