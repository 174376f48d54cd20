"""An upstream for s3prl (Yang et al. 2021, arXiv:2105.01051), which does not import s3prl."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from cpc.checkpoint import load_pretrained


class UpstreamExpert(nn.Module):
    """A model of audio with the interface of s3prl's upstreams: from 16 kHz waveforms to features by name.

    Each waveform is encoded separately, so that its features do not depend on the lengths of other waveforms.

    Args:
        ckpt: a run folder, a model folder, or a model of the Hub.
        model_config: unused; s3prl passes it to every upstream.
        trusted_packages: packages whose classes config.json may name.
        given: other arguments that s3prl passes to every upstream; unused.

    Raises:
        ValueError: if no model is named, `cpc.load_pretrained` raises one, or the model is not of audio at 16 kHz, the
            only sample rate of s3prl.
    """

    def __init__(
        self, ckpt: str | None, model_config: Any = None, *, trusted_packages: tuple[str, ...] = ("cpc",), **given: Any
    ) -> None:
        super().__init__()
        if ckpt is None:
            raise ValueError("ckpt is None: name a run, a model folder or ORG/NAME of the Hub, in s3prl with -k")
        self.model = load_pretrained(ckpt, trusted_packages=trusted_packages)
        encoder = self.model.encoder
        if encoder.modality != "audio" or encoder.sample_rate_hz != 16000:
            rate = f" at {encoder.sample_rate_hz} Hz" if hasattr(encoder, "sample_rate_hz") else ""
            raise ValueError(f"{ckpt} is a model of {encoder.modality}{rate}, but s3prl has only audio at 16000 Hz")

    def get_downsample_rates(self, key: str) -> int:
        """Return the samples per frame, which are equal for all features."""
        return self.model.encoder.hop_samples

    def forward(self, wavs: list[Tensor]) -> dict[str, Any]:
        """Compute the features of waveforms.

        Args:
            wavs: waveforms `[S]` of any lengths.

        Returns:
            `hidden_states`, of which s3prl takes a weighted sum: z and c, each `[B, T, D]`, padded with zeros, or only
            c if their widths differ. `last_hidden_state` is c.

        Raises:
            ValueError: if a waveform is too short for a frame.
        """
        encoded = [self.model.encode(wav[None])[:2] for wav in wavs]
        z, c = (pad_sequence([x[0] for x in features], batch_first=True) for features in zip(*encoded, strict=True))
        hidden = [z, c] if z.shape[-1] == c.shape[-1] else [c]
        return {"hidden_states": hidden, "last_hidden_state": c}
