"""Agents: contexts are reset at the end of an episode, predictions lie in one segment, returns match a slow loop."""

import pytest
import torch
from refusals import refuses

import cpc
from cpc.agents.actor_critic import ActorCritic, actor_critic_losses, discounted_returns, episode_segments

B, T = 3, 7


@pytest.fixture(params=["GRU", "StateSpace"])
def agent(request: pytest.FixtureRequest) -> ActorCritic:
    torch.manual_seed(0)
    encoder, context = cpc.encoders.VectorEncoder(2, dim=5, hidden_dim=6), getattr(cpc.contexts, request.param)(4, 2)
    return ActorCritic(cpc.CPC(encoder, context, cpc.predictors.Bilinear(2)), num_actions=3).double()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(B, T, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def begins_at(*places: tuple[int, int]) -> torch.Tensor:
    begins = torch.zeros(B, T, dtype=torch.bool)
    for b, t in places:
        begins[b, t] = True
    return begins


def test_contexts_are_those_of_each_episode_alone(agent: ActorCritic, x: torch.Tensor) -> None:
    begins = begins_at((0, 3), (2, 0), (2, 5))
    _, before = agent.model.context(agent.model.encoder(x.flip(1)))
    output = agent(x, begins, before)
    for b in range(B):
        state = tuple(each[b : b + 1] for each in before)
        for t in range(T):
            if begins[b, t]:
                state = None
            contexts, state = agent.model.context(agent.model.encoder(x[b : b + 1, t : t + 1]), state)
            torch.testing.assert_close(output.contexts[b, t], contexts[0, 0])
    torch.testing.assert_close(agent(x[:, :4], begins[:, :4], before).logits, output.logits[:, :4])


def test_a_rollout_played_in_parts_is_the_whole(agent: ActorCritic, x: torch.Tensor) -> None:
    begins = begins_at((1, 2), (0, 4))
    whole, state = agent(x, begins), None
    for start, end in ((0, 1), (1, 4), (4, 7)):
        part = agent(x[:, start:end], begins[:, start:end], state)
        torch.testing.assert_close(part.values, whole.values[:, start:end])
        state = part.state


def test_a_state_of_other_environments_is_refused(agent: ActorCritic, x: torch.Tensor) -> None:
    """The reset of one environment's state would otherwise spread it over all."""
    begins = torch.zeros(x.shape[:2], dtype=torch.bool)
    state = agent(x, begins).state
    for wrong in (tuple(each[:1] for each in state), tuple(each[..., :1] for each in state)):
        refuses("the state is", agent, x, begins, wrong)


def test_segments_end_where_episodes_begin() -> None:
    indices, num_valid = episode_segments(begins_at((0, 3), (2, 0), (2, 5), (2, 6)))
    segments = [row[:n].tolist() for row, n in zip(indices, num_valid.tolist(), strict=True)]
    assert segments == [[0, 1, 2], [3, 4, 5, 6], [*range(7, 14)], [14, 15, 16, 17, 18], [19], [20]]


def test_no_prediction_leaves_an_episode(agent: ActorCritic, x: torch.Tensor) -> None:
    begins = begins_at((0, 3), (2, 5))
    output = agent(x, begins)
    found = agent.contrast(output, begins, torch.Generator())
    cuts = [(0, 0, 3), (0, 3, 7), (1, 0, 7), (2, 0, 5), (2, 5, 7)]
    pool = torch.cat([output.targets[b, start:end] for b, start, end in cuts])
    queries = agent.model.predictor(output.contexts)
    step_losses = []
    for k in (1, 2):
        rows = [
            -(queries[k - 1, b, t] @ pool.T).log_softmax(0)[7 * b + t + k]
            for b, start, end in cuts
            for t in range(start, end - k)
        ]
        step_losses.append(torch.stack(rows).mean())
    assert found.num_rows.sum(1).tolist() == [16, 11]
    torch.testing.assert_close(found.loss, torch.stack(step_losses).mean())


def test_returns_are_what_a_loop_counts() -> None:
    generator = torch.Generator().manual_seed(2)
    rewards, ahead = torch.randn(B, T, generator=generator), torch.randn(B, generator=generator)
    is_end = torch.rand(B, T, generator=generator) < 0.3
    found = discounted_returns(rewards, is_end, ahead, 0.9)
    for b in range(B):
        for t in range(T):
            expected, weight, s = 0.0, 1.0, t
            while s < T:
                expected += weight * rewards[b, s].item()
                weight *= 0.9
                if is_end[b, s]:
                    break
                s += 1
            else:
                expected += weight * ahead[b].item()
            assert found[b, t].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_policy_follows_the_gradient_of_its_return(agent: ActorCritic, x: torch.Tensor) -> None:
    """The policy loss has the gradient -E[A grad log pi], the value loss is the mean squared error."""
    output = agent(x, begins_at())
    actions, returns = torch.randint(3, (B, T)), torch.randn(B, T, dtype=torch.float64)
    policy_loss, value_loss, entropy = actor_critic_losses(output, actions, returns)
    policy = torch.distributions.Categorical(logits=output.logits)
    torch.testing.assert_close(policy_loss, -((returns - output.values).detach() * policy.log_prob(actions)).mean())
    torch.testing.assert_close(entropy, policy.entropy().mean())
    torch.testing.assert_close(value_loss, (returns - output.values).square().mean())
    torch.autograd.backward(policy_loss)
    assert agent.value.weight.grad is None
    assert agent.policy.weight.grad.abs().max() > 0


def test_a_context_whose_state_grows_is_refused() -> None:
    model = cpc.CPC(cpc.encoders.VectorEncoder(2), cpc.contexts.CausalTransformer(dim=16), cpc.predictors.Bilinear(2))
    refuses(r"CausalTransformer has no state of fixed size: choose GRU, LSTM or", ActorCritic, model, 2)
