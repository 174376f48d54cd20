"""A policy and a value function on the contexts of a CPC model, and the losses of both.

B environments, T steps of a rollout, D latent dim, C context dim, A actions, K prediction steps, P segments: a rollout
is cut into segments where episodes begin.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cpc.losses.output import ContrastiveOutput
from cpc.model import CPC
from cpc.predictors import Output


class AgentOutput(NamedTuple):
    """The output of an agent for a batch of observations."""

    targets: Float[Tensor, "B T D"]  # latents that the CPC loss predicts
    contexts: Float[Tensor, "B T C"]
    logits: Float[Tensor, "B T A"]  # of the policy
    values: Float[Tensor, "B T"]
    state: tuple[Tensor, ...]  # of the context after the last step


class ActorCritic(nn.Module):
    """A linear policy and a linear value of the contexts; both losses train the encoder and the context of the model.

    A model whose context has no state of fixed size is a ValueError.
    """

    def __init__(self, model: CPC, num_actions: int) -> None:
        super().__init__()
        if not model.context.has_bounded_state:
            found = f"model.context {type(model.context).__name__} has no state of fixed size"
            raise ValueError(f"{found}: choose GRU, LSTM or StateSpace")
        self.model = model
        self.policy, self.value = nn.Linear(model.context.dim, num_actions), nn.Linear(model.context.dim, 1)
        nn.init.orthogonal_(self.policy.weight, gain=0.01)  # small, so that actions are about equally likely at first
        nn.init.orthogonal_(self.value.weight)
        for head in (self.policy, self.value):
            nn.init.zeros_(head.bias)

    def forward(self, x: Tensor, begins: Bool[Tensor, "B T"], state: tuple[Tensor, ...] | None = None) -> AgentOutput:
        """Return the output for observations. If `begins` is True at a step, the context's state is reset before it."""
        latents, targets = self.model.latents_and_targets(x)
        if state is not None:
            state = self.model.context.check_state(state, latents)
        parts = []
        starts = [0, *(begins[:, 1:].any(0).nonzero()[:, 0] + 1).tolist(), x.shape[1]]
        for start, end in pairwise(starts):
            if state is not None:
                kept = ~begins[:, start]
                state = tuple(torch.where(kept.view(-1, *[1] * (each.ndim - 1)), each, 0) for each in state)
            contexts, state = self.model.context(latents[:, start:end], state)
            parts.append(contexts)
        contexts = torch.cat(parts, 1)
        assert state is not None
        targets = latents if targets is None else targets
        return AgentOutput(targets, contexts, self.policy(contexts), self.value(contexts)[..., 0], state)

    def contrast(
        self, output: AgentOutput, begins: Bool[Tensor, "B T"], generator: torch.Generator
    ) -> ContrastiveOutput:
        """Return the CPC loss of a rollout: every segment is a sequence, and predictions lie in one segment."""
        queries = self.model.predictor(output.contexts)  # [K, B, T, D]
        indices, num_latents = episode_segments(begins)
        segments = Output(
            rearrange(output.targets, "b t d -> (b t) d")[indices],
            rearrange(output.contexts, "b t c -> (b t) c")[indices],
            {"": rearrange(queries, "k b t d -> k (b t) d")[:, indices]},
            None,
            steps=self.model.predictor_steps,
        )
        return self.model.loss_part(segments, self.model.loss_part.sequences(segments, num_latents), generator)


def episode_segments(begins: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, "P T"], Int[Tensor, " P"]]:
    """Return the indices (b t) of every segment's steps, padded to T, and the number of steps of every segment."""
    num_environments, num_steps = begins.shape
    is_first = begins.clone()
    is_first[:, 0] = True
    first = is_first.flatten().nonzero()[:, 0]
    num_valid = torch.diff(first, append=first.new_tensor([num_environments * num_steps]))
    indices = rearrange(first, "p -> p 1") + torch.arange(num_steps, device=begins.device)
    return indices.clamp(max=num_environments * num_steps - 1), num_valid


def discounted_returns(
    rewards: Float[Tensor, "B T"], is_end: Bool[Tensor, "B T"], final_values: Float[Tensor, " B"], discount: float
) -> Float[Tensor, "B T"]:
    """Return the discounted sum of the rewards from each step to the end (`is_end`) of its episode or of the rollout.

    `final_values`, of the observations after the last step, are added to the rewards of episodes that go on.
    """
    returns = torch.empty_like(rewards)
    following = final_values
    for t in reversed(range(rewards.shape[1])):
        following = rewards[:, t] + discount * torch.where(is_end[:, t], 0, following)
        returns[:, t] = following
    return returns


def actor_critic_losses(
    output: AgentOutput, actions: Int[Tensor, "B T"], returns: Float[Tensor, "B T"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of policy and value, and the policy's mean entropy.

    Mnih et al. 2016, arXiv:1602.01783, section 4.
    """
    log_policy = F.log_softmax(output.logits, -1)
    log_probs = log_policy.gather(-1, rearrange(actions, "b t -> b t 1"))[..., 0]
    advantages = (returns - output.values).detach()
    entropy = -(log_policy.exp() * log_policy).sum(-1).mean()
    return -(advantages * log_probs).mean(), F.mse_loss(output.values, returns), entropy
