"""An upstream for s3prl, which needs nothing of s3prl (Yang et al. 2021, arXiv:2105.01051)."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from cpc.checkpoint import load_pretrained


class UpstreamExpert(nn.Module):
    """A model of audio as s3prl's upstreams are: 16 kHz waveforms in, features by name out.

    Each waveform is encoded by itself, so that its features do not depend on how long the others of its batch are.

    Args:
        ckpt: a run folder, a model folder, or a model of the Hub.
        model_config: unused; s3prl hands it to every upstream.
        trusted_packages: packages whose classes its config.json may name.
        given: what else s3prl hands to every upstream, unused.

    Raises:
        ValueError: as `cpc.load_pretrained`; if no model is named; if it is no model of audio at 16 kHz, the only
            rate that s3prl has.
    """

    def __init__(
        self,
        ckpt: str | None,
        model_config: Any = None,
        *,
        trusted_packages: tuple[str, ...] = ("cpc",),
        **given: Any,
    ) -> None:
        super().__init__()
        if ckpt is None:
            raise ValueError("ckpt is None: name a run, a model folder or ORG/NAME of the Hub, to s3prl by -k")
        self.model = load_pretrained(ckpt, trusted_packages=trusted_packages)
        encoder = self.model.encoder
        if encoder.modality != "audio" or encoder.sample_rate_hz != 16000:
            rate = getattr(encoder, "sample_rate_hz", None)
            raise ValueError(
                f"{ckpt} is a model of {encoder.modality}" + (f" at {rate} Hz" if rate else "") + ", but s3prl has "
                "audio at 16000 Hz alone"
            )

    def get_downsample_rates(self, key: str) -> int:
        """Samples per frame, of every feature."""
        return self.model.encoder.hop_samples

    def forward(self, wavs: list[Tensor]) -> dict[str, Any]:
        """Features of waveforms.

        Args:
            wavs: `[S]` each, of any lengths.

        Returns:
            `hidden_states`, which s3prl weighs and adds: z and c, each `[B, T, D]` with zeros after the end of shorter
            ones, or c alone if their widths differ. `last_hidden_state` is c.

        Raises:
            ValueError: if one of them is too short for a frame.
        """
        encoded = [self.model.encode(wav[None])[:2] for wav in wavs]
        z, c = (pad_sequence([each[0] for each in of_all], batch_first=True) for of_all in zip(*encoded, strict=True))
        hidden = [z, c] if z.shape[-1] == c.shape[-1] else [c]
        return {"hidden_states": hidden, "last_hidden_state": c}
