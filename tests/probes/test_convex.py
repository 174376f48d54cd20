"""The solved probe against scikit-learn in float64, and the choice of its penalty against an exhaustive one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from cpc.probes import convex
from cpc.probes.convex import Coordinates, Solution, solve
from cpc.probes.fit import DEFAULT_L2, NUM_FOLDS, PENALTIES, choose_l2

NUM_CLASSES = 4


def problem(num: int, dim: int, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Classes around random centres; features are correlated, as a network's are."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(NUM_CLASSES), rng.integers(0, NUM_CLASSES, num - NUM_CLASSES)])
    centres = rng.standard_normal((NUM_CLASSES, dim)) * 2 / dim**0.5
    mix = rng.standard_normal((dim, dim)) / dim**0.5
    return (centres[labels] + noise * rng.standard_normal((num, dim)) @ mix).astype(np.float32), labels


def coordinates_of(x: np.ndarray, rows: np.ndarray | None = None) -> Coordinates:
    mean, scale = torch.from_numpy(x.mean(0)), torch.full((x.shape[1],), 2.0)
    return Coordinates(x, np.arange(len(x)) if rows is None else rows, mean, scale)


def oracle(x: np.ndarray, labels: np.ndarray, l2: float) -> LogisticRegression:
    return LogisticRegression(C=1 / l2, tol=1e-6, max_iter=5000).fit(x, labels)


@pytest.mark.parametrize(("num", "dim"), [(300, 12), (40, 90)])
@pytest.mark.parametrize("l2", [0.3, 30.0])
@pytest.mark.parametrize("way", ["kept", "streamed", "not whitened", "whitened by a sample"])
def test_solution_is_scikit_learns(num: int, dim: int, l2: float, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convex, "_BLOCK_ROWS", 64)
    if way == "streamed":
        monkeypatch.setattr(convex, "_KEPT_BYTES", 0)
    if way == "not whitened":
        monkeypatch.setattr(convex, "MOST_WHITENED_DIMS", 3)
    if way == "whitened by a sample":
        monkeypatch.setattr(convex, "_SPECTRUM_EXAMPLES", 16)
    x, labels = problem(num, dim)
    coordinates = coordinates_of(x)
    assert coordinates.dim == (dim if way == "not whitened" or num > dim else num - 1)
    solution = solve(coordinates, labels, NUM_CLASSES, l2)
    standardised = (x.astype(np.float64) - x.mean(0)) * 2
    expected = oracle(standardised, labels, l2)
    np.testing.assert_allclose(coordinates.feature_weights(solution.weight), expected.coef_, atol=2e-3)
    scores = standardised @ coordinates.feature_weights(solution.weight).numpy().T + solution.bias.numpy()
    np.testing.assert_allclose(softmax(scores, 1), expected.predict_proba(standardised), atol=1e-3)


def test_whitened_coordinates_need_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = problem(2000, 40)
    x *= np.geomspace(1, 10, 40, dtype=np.float32)
    whitened = solve(coordinates_of(x), labels, NUM_CLASSES, 1.0)
    monkeypatch.setattr(convex, "MOST_WHITENED_DIMS", 3)
    plain = solve(coordinates_of(x), labels, NUM_CLASSES, 1.0)
    assert whitened.num_passes * 2 < plain.num_passes


def test_it_goes_on_from_a_start() -> None:
    x, labels = problem(300, 12)
    coordinates = coordinates_of(x)
    first = solve(coordinates, labels, NUM_CLASSES, 3.0)
    again = solve(coordinates, labels, NUM_CLASSES, 3.0, Solution(first.weight, first.bias))
    assert 2 * again.num_passes < first.num_passes


@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
def test_the_penalty_is_the_best_of_an_exhaustive_cross_validation() -> None:
    """Groups shift the features, so that folds over examples and over groups would choose otherwise."""
    x, labels = problem(360, 30, noise=2.0)
    groups = np.arange(360) % 12
    x += 2 * np.random.default_rng(1).standard_normal((12, 30)).astype(np.float32)[groups]
    order = np.lexsort((np.random.default_rng(0).permutation(12), labels[:12]))
    fold = np.argsort(order)[groups] % NUM_FOLDS
    scores: dict[str, list[float]] = {"likelihood": [], "accuracy": []}
    for penalty in PENALTIES:
        held_out: dict[str, list[np.ndarray]] = {"likelihood": [], "accuracy": []}
        for number in range(NUM_FOLDS):
            kept = fold != number
            model = oracle((x[kept] - x.mean(0)) * 2, labels[kept], penalty * kept.sum())
            log_probabilities = log_softmax(model.decision_function((x[~kept] - x.mean(0)) * 2), 1)
            of_label = log_probabilities[np.arange((~kept).sum()), labels[~kept]]
            held_out["likelihood"].append(of_label)
            held_out["accuracy"].append(of_label == log_probabilities.max(1))
        for chosen_by, found in held_out.items():
            scores[chosen_by].append(float(np.concatenate(found).mean()))
    coordinates = coordinates_of(x)
    # Accuracy goes up and down with few examples: no better among the next two, but for an answer.
    l2, _ = choose_l2(coordinates, labels, groups, NUM_CLASSES, "accuracy")
    chosen = int(np.argmin(np.abs(np.log(np.array(PENALTIES) * 360 / l2))))
    assert max(scores["accuracy"][: chosen + 3]) <= scores["accuracy"][chosen] + 1.5 / 360
    assert scores["accuracy"][chosen] > 1 / NUM_CLASSES
    l2, start = choose_l2(coordinates, labels, groups, NUM_CLASSES, "likelihood")
    best = PENALTIES[int(np.argmax(scores["likelihood"]))]
    assert PENALTIES[-1] < best < PENALTIES[0]
    assert l2 == pytest.approx(best * 360)
    expected = oracle((x - x.mean(0)) * 2, labels, l2).coef_
    assert np.linalg.norm(start.weight.numpy() - expected) < 0.6 * np.linalg.norm(expected)  # it is a place to begin


def test_accuracy_that_is_flat_under_large_penalties_does_not_end_the_search() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 600, p=[0.94, 0.03, 0.03])
    x = (rng.standard_normal((600, 8)) + 1.5 * np.eye(3, 8)[labels]).astype(np.float32)
    coordinates = coordinates_of(x)
    standardised = (x - x.mean(0)) * 2
    for penalty in PENALTIES[:3]:
        assert (oracle(standardised, labels, 600 * penalty).predict(standardised) == 0).all()
    l2, _ = choose_l2(coordinates, labels, np.arange(600), 3, "accuracy")
    assert oracle(standardised, labels, l2).score(standardised, labels) > 0.945


@pytest.mark.parametrize("case", ["rare", "separable", "collinear", "offset", "tiny", "large", "two classes"])
def test_every_class_is_solved_to_the_optimum(case: str) -> None:
    """Weights of every class, one of four examples among 4000 too, are those of scikit-learn in float64."""
    rng = np.random.default_rng(3)
    num, dim, num_classes = (300, 40, 4) if case == "separable" else (4000, 12, 2 if case == "two classes" else 4)
    labels = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes - 1, num - num_classes - 3)])
    labels = np.append(labels, [num_classes - 1] * 3)
    centres = rng.standard_normal((num_classes, dim)) * (6 if case == "separable" else 0.5)
    x = centres[labels] + rng.standard_normal((num, dim))
    if case == "collinear":
        x = np.concatenate([x, x @ rng.standard_normal((dim, dim))], 1)
    x = (x * {"tiny": 1e-6, "large": 1e6}.get(case, 1.0) + (1000 if case == "offset" else 0)).astype(np.float32)
    mean, scale = x.mean(0, dtype=np.float64), 1 / x.std(0, dtype=np.float64)
    standardised = (x - mean) * scale
    l2 = 0.01 if case == "separable" else 0.5
    coordinates = Coordinates(x, np.arange(num), *(torch.from_numpy(each).float() for each in (mean, scale)))
    found = solve(coordinates, labels, num_classes, l2)
    c = 2 / l2 if case == "two classes" else 1 / l2  # scikit-learn then has one vector, as the docstring says
    best = LogisticRegression(C=c, tol=1e-10, solver="newton-cholesky", max_iter=1000).fit(standardised, labels)
    weight = coordinates.feature_weights(found.weight).double().numpy()
    if case == "two classes":
        weight = weight[1:] - weight[:1]
    off = np.linalg.norm(weight - best.coef_, axis=1) / np.linalg.norm(best.coef_, axis=1)
    assert off.max() < 2e-3
    assert found.num_passes < 250


def test_a_search_that_does_not_arrive_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convex, "_MOST_PASSES", 5)
    x, labels = problem(300, 12)
    with pytest.warns(UserWarning, match="is not at its optimum after"):
        solve(coordinates_of(x), labels, NUM_CLASSES, 0.3)


def test_one_example_of_each_class_leaves_no_choice() -> None:
    x, labels = problem(NUM_CLASSES, 6)
    assert choose_l2(coordinates_of(x), labels, np.arange(NUM_CLASSES), NUM_CLASSES) == (DEFAULT_L2, None)


def test_a_class_in_one_file_does_not_stop_the_solver() -> None:
    """Folds without the class drive its bias down; the fit must not start from there."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 8)).astype(np.float32)
    labels = (x[:, :3] + rng.standard_normal((20_000, 3))).argmax(1)
    groups = np.arange(20_000) // 200
    labels[:4] = 3  # four examples, all in the first file
    coordinates = coordinates_of(x)
    l2, start = choose_l2(coordinates, labels, groups, 4)
    standardised = (x.astype(np.float64) - x.mean(0)) * 2
    expected = oracle(standardised, labels, l2).predict_proba(standardised)
    low = replace(start, bias=start.bias - 30 * (torch.arange(4) == 3))  # where folds without the class would end
    for begin in (start, low):
        found = solve(coordinates, labels, 4, l2, begin)
        scores = standardised @ found.weight.numpy().T + found.bias.numpy()
        np.testing.assert_allclose(softmax(scores, 1), expected, atol=1e-3)
