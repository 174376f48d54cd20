"""A policy and a value that read the contexts of a CPC model, and the losses of both.

B environments, T steps of a rollout, D latent dim, C context dim, A actions, K prediction steps, P pieces of episodes.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cpc.data.batch import Batch
from cpc.losses.output import ContrastiveOutput
from cpc.model import CPC
from cpc.predictors import Output


class Played(NamedTuple):
    """What an agent makes of observations."""

    targets: Float[Tensor, "B T D"]
    contexts: Float[Tensor, "B T C"]
    logits: Float[Tensor, "B T A"]
    values: Float[Tensor, "B T"]
    state: tuple[Tensor, ...]


class ActorCritic(nn.Module):
    """Linear policy and value of the contexts; encoder and context are the model's own, trained by both losses.

    Args:
        model: of observations as the environments give them.
        num_actions: A.

    Raises:
        ValueError: if the contexts have no state of bounded size, which acting step by step needs.
    """

    def __init__(self, model: CPC, num_actions: int) -> None:
        super().__init__()
        if not model.context.has_bounded_state:
            raise ValueError(
                f"model.context is {type(model.context).__name__}, whose state grows with every step: choose GRU or "
                "LSTM"
            )
        self.model = model
        self.policy = nn.Linear(model.context.dim, num_actions)
        self.value = nn.Linear(model.context.dim, 1)
        nn.init.orthogonal_(self.policy.weight, gain=0.01)  # begin with all actions about as likely
        nn.init.orthogonal_(self.value.weight)
        for head in (self.policy, self.value):
            nn.init.zeros_(head.bias)

    def forward(self, x: Tensor, begins: Bool[Tensor, "B T"], state: tuple[Tensor, ...] | None = None) -> Played:
        """What an agent makes of observations; contexts forget where an episode `begins`."""
        latents, targets = self.model.loss_part.encode(self.model.encoder, x)
        parts = []
        starts = [0, *(begins[:, 1:].any(0).nonzero()[:, 0] + 1).tolist(), x.shape[1]]
        for start, end in pairwise(starts):
            if state is not None:
                state = tuple(torch.where(_like(begins[:, start], each), 0, each) for each in state)
            contexts, state = self.model.context(latents[:, start:end], state)
            parts.append(contexts)
        contexts = torch.cat(parts, 1)
        assert state is not None
        return Played(
            latents if targets is None else targets,
            contexts,
            self.policy(contexts),
            self.value(contexts)[..., 0],
            state,
        )

    def contrast(self, played: Played, begins: Bool[Tensor, "B T"], generator: torch.Generator) -> ContrastiveOutput:
        """The CPC loss of a rollout: every piece of an episode is a sequence, and no prediction leaves it.

        Raises:
            ValueError: if no piece is longer than the first prediction.
        """
        queries = self.model.predictor(played.contexts)  # [K, B, T, D]
        places, num_valid = pieces(begins)
        of_pieces = Output(
            rearrange(played.targets, "b t d -> (b t) d")[places],
            rearrange(played.contexts, "b t c -> (b t) c")[places],
            {"": rearrange(queries, "k b t d -> k (b t) d")[:, places]},
            None,
        )
        batch = Batch.of(of_pieces.latents)._replace(num_valid=num_valid)
        return self.model.loss_part(of_pieces, batch, generator)


def pieces(begins: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, "P T"], Int[Tensor, " P"]]:
    """A rollout cut where episodes begin: places (b t) of each piece, padded, and how many of them there are."""
    num_environments, num_steps = begins.shape
    cut = begins.clone()
    cut[:, 0] = True
    first = cut.flatten().nonzero()[:, 0]
    num_valid = torch.diff(first, append=first.new_tensor([num_environments * num_steps]))
    places = rearrange(first, "p -> p 1") + torch.arange(num_steps, device=begins.device)
    return places.clamp(max=num_environments * num_steps - 1), num_valid


def returns_of(
    rewards: Float[Tensor, "B T"], is_end: Bool[Tensor, "B T"], value_ahead: Float[Tensor, " B"], discount: float
) -> Float[Tensor, "B T"]:
    """Discounted sums of what follows up to the end of the episode, or of the rollout and the value ahead of it."""
    found = torch.empty_like(rewards)
    ahead = value_ahead
    for t in reversed(range(rewards.shape[1])):
        ahead = rewards[:, t] + discount * torch.where(is_end[:, t], 0, ahead)
        found[:, t] = ahead
    return found


def actor_critic_losses(
    played: Played, actions: Int[Tensor, "B T"], returns: Float[Tensor, "B T"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the policy, of the value, and the policy's mean entropy (Mnih et al. 2016, arXiv:1602.01783, section 4)."""
    log_policy = F.log_softmax(played.logits, -1)
    of_action = log_policy.gather(-1, rearrange(actions, "b t -> b t 1"))[..., 0]
    advantages = (returns - played.values).detach()
    entropy = -(log_policy.exp() * log_policy).sum(-1).mean()
    return -(advantages * of_action).mean(), F.mse_loss(played.values, returns), entropy


def _like(flags: Bool[Tensor, " B"], state: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (state.ndim - 1))
