"""Other packages' kernels for the loss, for `python -m benchmarks.gpu`; each only where it is installed.

Their functions take queries of norm `QUERY_NORM` and candidates of norm 1, `[M, D]` each, float32 or bfloat16. Positive
i is candidate i.
"""

from collections.abc import Callable, Iterator
from importlib import import_module

import torch

QUERY_NORM = 10.0
SIGMOID_BIAS = -10.0  # the initial bias of SigLIP


def foreign() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """Yield the names and functions of the packages that are installed; print why a package is left out.

    siglip-kernel computes another loss, the sigmoid loss of SigLIP, which has the same matrix products.
    """
    try:
        flash = import_module("inf_cl").cal_flash_loss
        yield "Inf-CL", lambda queries, candidates, positives: flash(queries, candidates, positives).mean()
    except Exception as error:  # not installed, or not for this version
        print(f"  Inf-CL: {type(error).__name__}: {error}")
    try:
        fused = import_module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
        yield "Liger", lambda queries, candidates, positives: fused.apply(queries, candidates, positives)[0]
    except Exception as error:
        print(f"  Liger: {type(error).__name__}: {error}")
    try:
        # memeff 0.3.1 drops negatives whose cosine is above that of the positive by more than `margin`, which never
        # exceeds 2, and with `stable` multiplies the gradients by another factor.
        qwen3 = import_module("memeff").MemoryEfficientQwen3Loss(
            temperature=1 / QUERY_NORM, margin=3.0, normalized_inputs=True, stable=False
        )
        yield "memeff", lambda queries, candidates, positives: qwen3(queries / QUERY_NORM, candidates)
    except Exception as error:
        print(f"  memeff: {type(error).__name__}: {error}")
    try:
        siglip = import_module("siglip_kernel").fused_siglip_loss  # siglip-kernel 0.1.2 chooses a kernel by dtype

        def sigmoid(queries: torch.Tensor, candidates: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            log_temperature, bias = torch.tensor([0.0, SIGMOID_BIAS], device=queries.device)
            return siglip(queries, candidates, log_temperature, bias)

        yield "siglip-kernel: another loss (sigmoid)", sigmoid
    except Exception as error:
        print(f"  siglip-kernel: {type(error).__name__}: {error}")
