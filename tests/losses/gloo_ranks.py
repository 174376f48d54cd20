"""Run by path: trains small models on the same eight observations at several world sizes.

    python tests/losses/gloo_ranks.py FOLDER MOST_STEPS SPLIT...

Each rank is a process with a part of the observations, Gloo and DDP; a single process runs the definition of InfoNCE.
Rank 0 saves, for each case, the loss and the sums of each step, the gradients of the first step, and the weights after
the last.
"""

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import cpc.losses.ranks
from cpc import CPC, load_pretrained, save_pretrained
from cpc.candidates import STRATEGIES, ClassTable
from cpc.candidates.samplers import Uniform
from cpc.contexts import GRU, PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder, FrameEncoder, PatchEncoder, SignalEncoder, TinyTrunk, TokenEncoder
from cpc.losses import ClassTableLoss, Contrastive, LocalContrastive, Loss
from cpc.losses.ranks import gather_sequences
from cpc.predictors import Bilinear, Output

WINDOW = 1600  # ten latents
LENGTHS = torch.tensor([10, 10, 4, 10, 7, 10, 1, 10]) * 160
FILES = torch.tensor([0, 1, 1, 2, 3, 0, 4, 5])  # some on several ranks
# Samples of signals of four samples a latent: a gap in some, one without any known sample.
KNOWN_SAMPLES = torch.ones(8, 40, dtype=torch.bool)
KNOWN_SAMPLES[1, 10:29] = KNOWN_SAMPLES[2] = KNOWN_SAMPLES[5, :9] = KNOWN_SAMPLES[7, 33:] = False
SPEAKERS = torch.tensor([0, 1, 1, 1, 1, 0, 0, 0])


ALL_KNOWN = ("num_valid", "sequence_id", "group_id", "is_known")


class Case(NamedTuple):
    """A loss, the kind of observations, what is known of them, and how long it is trained."""

    loss: Loss
    kind: str = "audio"
    known: tuple[str, ...] = ("num_valid", "sequence_id", "group_id")
    num_valid: Tensor = LENGTHS
    num_steps: int = 3
    is_sharded: bool = False  # by FSDP2, not replicated by DDP
    frozen: str = ""  # a part of the model that does not learn


def cases() -> dict[str, Case]:
    of_audio = {strategy: Case(Contrastive(strategy), num_steps=20) for strategy in STRATEGIES}
    drawn = {
        f"{strategy}, drawn": Case(Contrastive(strategy, 5), num_steps=num_steps)
        for strategy, num_steps in (("mixed", 20), ("same_speaker_excluding", 3))
    }
    return {
        **of_audio,
        **drawn,
        "shared draws": Case(Contrastive("mixed_excluding", 5, shared_across_steps=True)),
        "auxiliary": Case(Contrastive("mixed", 5, auxiliary_negatives={"same_speaker": 0.5})),
        "skipped steps": Case(Contrastive("mixed", 5, skip_steps=1)),
        "ranks apart": Case(Contrastive("sequence_only"), known=("num_valid",)),
        "ranks apart, drawn": Case(Contrastive("sequence_only", 5), known=("group_id",)),
        "ranks apart, shared draws": Case(Contrastive("sequence_only", 5, shared_across_steps=True), known=()),
        "one strategy apart": Case(Contrastive("sequence_only", auxiliary_negatives={"mixed": 0.5}), known=()),
        "images, ranks apart": Case(Contrastive("sequence_only", skip_steps=1), "images", known=()),
        "nothing known": Case(Contrastive("mixed_excluding"), known=()),
        "ranks without rows": Case(Contrastive("mixed", 5), num_valid=torch.tensor([0, 1, 1, 1, 10, 4, 1, 10]) * 160),
        **{
            f"missing samples, {name}": Case(loss, "signals", ALL_KNOWN, LENGTHS // 40)
            for name, loss in (
                ("all", Contrastive("mixed_excluding")),
                ("apart", Contrastive("sequence_only")),
                ("drawn", Contrastive("mixed", 5)),
                ("shared draws", Contrastive("same_speaker", 5, shared_across_steps=True)),
            )
        },
        "images": Case(Contrastive("mixed_excluding", skip_steps=1), "images", known=()),
        "images, drawn": Case(Contrastive("mixed", 4), "images", known=("sequence_id",), num_steps=20),
        **{
            name: Case(loss, "tokens", ("num_valid",), torch.tensor([10, 10, 4, 10, 7, 10, 1, 10]), num_steps)
            for name, loss, num_steps in (
                ("classes", ClassTableLoss(ClassTable(12, 5), "full_softmax"), 20),
                ("classes, drawn", ClassTableLoss(ClassTable(12, 5), "sampled_softmax", Uniform(12), 4), 20),
                ("classes, drawn for NCE", ClassTableLoss(ClassTable(12, 5), "nce", Uniform(12), 4), 3),
            )
        },
        "places": Case(LocalContrastive("mixed"), "frames", known=()),
        "sharded weights": Case(Contrastive("mixed", 5), is_sharded=True),
        "frozen encoder": Case(Contrastive("mixed_excluding"), frozen="encoder"),
        "frozen encoder of places": Case(LocalContrastive("mixed"), "frames", known=(), frozen="encoder"),
        "frozen predictor": Case(Contrastive("mixed"), frozen="predictor"),
    }


def model_of(case: Case) -> CPC:
    torch.manual_seed(1)
    if case.kind == "images":
        trunk = TinyTrunk(6, 1, strides=(2, 1), widths=(4, 4))
        context = PixelCNN(6, 2, 6, ("down", "left"))
        return CPC(PatchEncoder(trunk, patch_size=4, stride=2), context, Bilinear(2), case.loss).double()
    if case.kind == "tokens":
        return CPC(TokenEncoder(12, 4), GRU(5), Bilinear(2), case.loss).double()
    if case.kind == "signals":
        encoder = SignalEncoder(2, 6, kernels=(4, 2), strides=(2, 2), front="raw")
        return CPC(encoder, GRU(dim=5), Bilinear(num_steps=3), case.loss).double()
    if case.kind == "frames":
        encoder = FrameEncoder((16, 16), 6, widths=(4, 3), kernels=(4, 3), strides=(2, 2))
        return CPC(encoder, GRU(5), Bilinear(2), case.loss).double()
    return CPC(AudioEncoder(dim=6), GRU(dim=5), Bilinear(num_steps=3), case.loss).double()


def observations(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if kind == "images":
        return torch.randn(8, 1, 12, 10, dtype=torch.float64, generator=generator)  # grids of 5 x 4 patches
    if kind == "tokens":
        return torch.randint(0, 12, (8, 10), generator=generator)
    if kind == "frames":
        return torch.randint(0, 256, (8, 4, 1, 16, 16), dtype=torch.uint8, generator=generator)
    if kind == "signals":
        x = torch.randn(8, 40, 2, dtype=torch.float64, generator=generator)
        return x.masked_fill(~KNOWN_SAMPLES[:, :, None], torch.nan)
    return torch.randn(8, WINDOW, dtype=torch.float64, generator=generator)


def train(case: Case, own: slice, most_steps: int) -> dict[str, Any]:
    x, model, has_ranks = observations(case.kind), model_of(case), dist.is_initialized()
    model.initialise_from(x)
    if case.frozen:
        getattr(model, case.frozen).requires_grad_(False)
    if not has_ranks and isinstance(model.loss_part, Contrastive):  # several ranks are compared to the definition
        model.loss_part.compute = "reference"
    ids = {"num_valid": case.num_valid, "sequence_id": FILES, "group_id": SPEAKERS, "is_known": KNOWN_SAMPLES}
    batch = Batch.of(x[own])._replace(**{name: ids[name][own] for name in case.known})
    if case.kind == "tokens":
        following = torch.randint(0, 12, (8, 11), generator=torch.Generator().manual_seed(4))
        batch = batch._replace(labels=following[own])
    wrapped: Callable[[Tensor], Any] = model
    if has_ranks and case.is_sharded:
        for part in (model.encoder, model.context, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif has_ranks:
        wrapped = DistributedDataParallel(model)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    draws = torch.Generator().manual_seed(3)
    made: dict[str, Any] = {"losses": [], "sums": []}
    for step in range(min(case.num_steps, most_steps)):
        optimiser.zero_grad()
        contrast = model.contrast(wrapped(batch.x), batch, draws)
        contrast.loss.backward()
        if step == 0:
            learning = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
            made["gradients"] = {name: whole(each.grad.clone()) for name, each in learning}
        optimiser.step()
        made["losses"].append(contrast.loss.detach())
        made["sums"].append(torch.stack(contrast[1:]))
    made["weights"] = {name: whole(each) for name, each in model.state_dict().items()}
    if case.is_sharded:
        made["exported"] = exported(model)
    return made


def exported(model: CPC) -> dict[str, Tensor]:
    folder = Path(of_all(tempfile.mkdtemp())[0])
    save_pretrained(model, folder)
    of_all("until it is written")
    load_pretrained(folder)
    return load_file(folder / "model.safetensors")


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def of_all(value: Any) -> list[Any]:
    values = [value] * (dist.get_world_size() if dist.is_initialized() else 1)
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def gathered(made: dict[str, Any]) -> dict[str, Any]:
    """With the losses as their means over ranks, and the sums of all observations."""
    of_ranks = of_all(made)
    losses = torch.stack([torch.stack(each["losses"]) for each in of_ranks]).mean(0)
    sums = torch.cat([torch.stack(each["sums"]) for each in of_ranks], -1)
    return made | {"losses": losses, "sums": sums}


def refusals() -> dict[str, str]:
    """What each way to disagree, or to have no negatives anywhere, is told on this rank."""
    rank = dist.get_rank()
    model = model_of(Case(Contrastive("same_speaker_excluding")))

    def told(length: int, **ids: Tensor) -> str:
        x = torch.randn(1, length, dtype=torch.float64)
        try:
            model.loss(Batch.of(x)._replace(**ids))
        except ValueError as error:
            return str(error)
        return ""

    speaker = {"group_id": torch.tensor([rank])}
    half_known = speaker if rank else {"sequence_id": torch.tensor([0])}
    return {"shapes": told(1600 + 160 * rank), "ids": told(1600, **half_known), "alone": told(1600, **speaker)}


def apart() -> list[bool]:
    """Whether targets stay on their ranks, with files and speakers that ranks share or do not."""
    rank = dist.get_rank()
    x = torch.zeros(2, 5, 3)

    def stay(*strategies: str, **ids: Tensor) -> bool:
        sequences = Contrastive().sequences(Output(x, x, {"": x[None]}, None))._replace(**ids)
        return gather_sequences(sequences, strategies)[1].is_apart

    of_ranks, same = torch.tensor([rank, rank]), torch.tensor([0, 0])
    return [
        *(stay("sequence_only"), stay("sequence_only", "mixed"), stay("sequence_only", sequence_id=of_ranks)),
        *(stay("sequence_only", sequence_id=same), stay("same_speaker", group_id=of_ranks)),
        *(stay("same_speaker", group_id=same), stay("same_speaker_excluding", group_id=of_ranks)),
    ]


def collapsed() -> bool:
    """Whether equal latents on all ranks are right once in N, though ranks round their products differently."""
    rank, generator = dist.get_rank(), torch.Generator().manual_seed(0)
    for dim, num in ((48, 2 + rank), (300, 3), (513, 1 + 4 * rank)):
        latents = torch.randn(dim, generator=generator).expand(num, 5, dim).contiguous()
        output = Output(latents, latents, {"": torch.randn(2, num, 5, dim)}, None)
        loss = Contrastive("mixed")
        found = loss(output, loss.sequences(output))
        num_each = found.num_candidates / found.num_rows
        if not torch.allclose(found.accuracy, found.num_rows / num_each, rtol=1e-6, atol=0):
            return False
    return True


def on_rank(rank: int, split: str, folder: Path, most_steps: int) -> None:
    sizes = [int(size) for size in split.split("+")]
    torch.set_num_threads(1)
    cpc.losses.ranks._NUM_AT_ONCE = 4  # the identities of five take a second message
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    if len(sizes) > 1:
        rendezvous = f"file://{folder / split}.rendezvous"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(sizes))
    made: dict[str, Any] = {name: gathered(train(case, own, most_steps)) for name, case in cases().items()}
    if len(sizes) > 1:
        made["refusals"], made["apart"] = of_all(refusals()), of_all(apart())
        made["collapsed"] = of_all(collapsed())
    if rank == 0:
        torch.save(made, folder / f"{split}.pt")
    if len(sizes) > 1:
        dist.destroy_process_group()
        dist.init_process_group("cuda:gloo", init_method=f"{rendezvous}.cuda", rank=rank, world_size=len(sizes))
        assert apart() == made["apart"][rank], "identities, of ranks whose group takes nothing of the host, as NCCL's"
        dist.destroy_process_group()


def main(folder: Path, most_steps: int, *splits: str) -> None:
    torch.optim.Adam([torch.zeros(1)]).zero_grad()  # at the first one torch imports for seconds: once, not in each rank
    context = multiprocessing.get_context("fork")  # no thread has started yet
    for split in splits:
        numbers = range(split.count("+") + 1)
        ranks = [context.Process(target=on_rank, args=(rank, split, folder, most_steps)) for rank in numbers]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        if any(each.exitcode for each in ranks):
            sys.exit(f"{split}: exit codes {[each.exitcode for each in ranks]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
