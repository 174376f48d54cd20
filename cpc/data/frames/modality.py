"""Frames as a modality: recorded episodes -> windows of frame stacks."""

from dataclasses import dataclass
from typing import Any, ClassVar

from cpc.config.argument_rules import Count
from cpc.data.frames.corpus import NUM_INITIALISATION_WINDOWS, FrameCorpus
from cpc.data.frames.probe_data import FrameProbeData
from cpc.data.map_style import MapStyleModality


@dataclass(kw_only=True)
class Frames(MapStyleModality):
    """Windows of recorded episodes; an observation is a stack of a frame and the frames before it.

    Args:
        source: a folder that `cpc data record` wrote.
        window_frames: length of a window. Windows and predictions lie in one episode.
        stack: number of frames in a stack: the current frame, which is the last, and the frames before it. It must
            equal `model.encoder.init_args.num_frames`.
    """

    name = "frames"
    unit = "windows"
    size_option = "window_frames"
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size", "window_frames")
    num_initialisation: ClassVar[int] = NUM_INITIALISATION_WINDOWS

    source: str
    window_frames: Count = 32
    stack: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_dir is not None or self.skip_bad:
            raise ValueError("`cache_dir` and `skip_bad` apply only to files that are packed, but recordings are not")

    def check(self, model: Any) -> None:
        """Also raise an error if windows are too short for the model's predictions."""
        super().check(model)
        self.check_reach(model, self.window_frames, f"`window_frames`={self.window_frames}")

    def open(self, encoder: Any, *, is_training: bool = False) -> FrameCorpus:
        """Open the recording, whose frames must have the shape that the encoder reads."""
        corpus = FrameCorpus(self.source, self.window_frames, self.stack)
        encoder_shape = (encoder.num_frames, *encoder.frame_size)
        if corpus.stacks.shape != encoder_shape:
            needed, found = (" x ".join(map(str, shape)) for shape in (encoder_shape, corpus.stacks.shape))
            what = f"the encoder takes stacks of frames of {needed} pixels, but those of {self.source} are {found}"
            raise ValueError(f"{what}: set `stack` to `encoder.num_frames`, and `encoder.frame_size` to these")
        return corpus

    def usable(self, corpus: FrameCorpus, split: str, model: Any) -> FrameCorpus:
        """Return the corpus; at least one episode of the split must reach the furthest prediction."""
        longest = int(corpus.windows(split).lengths.max())
        self.check_reach(model, longest, f"split {split!r}: the longest episode has {longest} frames")
        return corpus

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> FrameProbeData:  # noqa: D102
        return FrameProbeData(corpus, **where)
