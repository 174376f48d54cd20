from typing import Any

import numpy as np
import pytest
from torch import nn

import cpc
from cpc.data.images.corpus import ImageCorpus
from cpc.probes.images import efficiency
from cpc.probes.images.efficiency import label_efficiency
from cpc.probes.images.network import NetworkProtocol, train_network
from cpc.probes.images.task import ImageTask
from cpc.probes.linear import ProbeProtocol

QUICK = ProbeProtocol(min_steps=100, num_epochs=1, num_seeds=1)
BRIEF = NetworkProtocol(num_epochs=1, min_steps=1, seconds=None, batch_size=8)


@pytest.fixture
def task(corpus: ImageCorpus) -> ImageTask:
    return ImageTask(corpus)


@pytest.fixture
def features(task: ImageTask) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """One that knows the class in part, one that knows nothing."""
    rng = np.random.default_rng(0)
    parts = (task.train, task.test)
    noise = [rng.standard_normal((len(part), 3)).astype(np.float32) for part in parts]
    hints = [values + 1.5 * part.labels[:, None].astype(np.float32) for values, part in zip(noise, parts, strict=True)]
    return {"hint": (hints[0], hints[1]), "noise": (noise[0], noise[1])}


def test_everyone_gets_the_same_labels(
    task: ImageTask, features: dict, model: cpc.CPC, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order asked for; `fine_tuned` alone is taken as pretrained."""
    probed: list[list[int]] = []
    trained: list[tuple[bool, list[int]]] = []
    probe = ImageTask.probe

    def watched_probe(self: ImageTask, *arguments: Any, **options: Any) -> Any:
        probed.append(arguments[3].tolist())
        return probe(self, *arguments, **options)

    def watched_network(encoder: nn.Module, *arguments: Any, **options: Any) -> Any:
        trained.append((options["is_pretrained"], options["rows"].tolist()))
        assert encoder is model.encoder
        return train_network(encoder, *arguments, **options)

    monkeypatch.setattr(ImageTask, "probe", watched_probe)
    monkeypatch.setattr(efficiency, "train_network", watched_network)
    shares = (0.5, 0.01, 1.0)
    networks = {"supervised": model.encoder, "fine_tuned": model.encoder}
    curve = label_efficiency(task, features, networks, shares=shares, probe=QUICK, network=BRIEF, progress=False)
    rows = [task.subset(share).tolist() for share in shares]
    assert [len(of_share) for of_share in rows] == [16, 2, 30]  # 15 of each class: 8 and 8, 1 and 1, all
    assert probed == [of_share for of_share in rows for _ in features]
    assert trained == [(is_pretrained, of_share) for of_share in rows for is_pretrained in (False, True)]
    assert (curve["shares"], curve["num_labels"]) == ([0.5, 0.01, 1.0], [16, 2, 30])
    assert list(curve["accuracy_percent"]) == ["hint", "noise", "supervised", "fine_tuned"]
    assert all(len(values) == 3 for values in curve["accuracy_percent"].values())


def test_all_labels_give_what_the_probe_gives(task: ImageTask, features: dict) -> None:
    curve = label_efficiency(task, features, {}, shares=(0.1, 1.0), probe=QUICK, network=BRIEF, progress=False)
    for name, (train, test) in features.items():
        assert curve["accuracy_percent"][name][1] == task.probe(train, test, QUICK).accuracy_percent
    assert curve["accuracy_percent"]["hint"][1] > 80 > curve["accuracy_percent"]["noise"][1]


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_shares_that_are_none_are_named_before_anything_is_trained(
    share: float, task: ImageTask, features: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageTask, "probe", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match=f"a share of labels, {share}, must lie above 0"):
        label_efficiency(task, features, {}, shares=(0.5, share), probe=QUICK, network=BRIEF, progress=False)
