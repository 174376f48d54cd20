"""The classes of a corpus of images, with the parts where they are learnt and tested.

n images.
"""

from dataclasses import dataclass, replace

import numpy as np

from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.probes.linear import ProbeProtocol, fit_probe, standardise
from cpc.probes.results import Answers, ProbeResult, summarise
from cpc.probes.targets import UNSEEN, Examples


@dataclass(frozen=True)
class ImagePart:
    """Labelled images of a split.

    Attributes:
        images: what they look like.
        labels: `[n]` class of each; `UNSEEN` where the training part has no such class.
    """

    images: ImageDataset
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def examples(self, values: np.ndarray, rows: np.ndarray | None = None) -> Examples:
        """Features of all, `[n, D]`, as examples; some of them if `rows` says which. Intervals resample sequences."""
        rows = np.arange(len(self)) if rows is None else np.sort(rows)
        return Examples(values, rows, self.labels[rows], clusters=self.images.sequence_ids[rows])


class ImageTask:
    """Which of its classes an image shows.

    Args:
        corpus: the images.
        train_split: where probes are trained.
        test_split: where they are tested, another one.
        device: where probes are trained.

    Attributes:
        classes: names by label.
        train: labelled images of the training split.
        test: likewise.

    Raises:
        ValueError: if the splits are the same or missing, or the training part has fewer than two classes, or the
            parts have none in common.
    """

    def __init__(
        self, corpus: ImageCorpus, train_split: str = "train", test_split: str = "test", device: str = "cpu"
    ) -> None:
        if train_split == test_split:
            raise ValueError(f"train_split and test_split are both {train_split!r}: a probe is tested on other images")
        self.classes = corpus.classes
        self.device = device
        self.train_split, self.test_split = train_split, test_split
        labels = corpus.table.labels
        known = {}
        for split in (train_split, test_split):
            rows = corpus.table.rows(split)
            known[split] = set(labels[rows][labels[rows] >= 0].tolist())
            if not known[split]:
                raise ValueError(
                    f"no image of split {split!r} has a label: a probe needs some; name another split, or name "
                    "folders after their classes"
                )
        if len(known[train_split]) < 2:
            (only,) = known[train_split]
            raise ValueError(
                f"split {train_split!r} has a single class, {self.classes[only]!r}: there is nothing to tell apart"
            )
        if not known[train_split] & known[test_split]:
            raise ValueError(
                f"splits {train_split!r} and {test_split!r} have no class in common: every answer would be wrong"
            )
        self.train, test = (self._labelled(corpus, split) for split in (train_split, test_split))
        self.test = replace(test, labels=np.where(np.isin(test.labels, self.train.labels), test.labels, UNSEEN))

    def probe(
        self,
        train: np.ndarray,
        test: np.ndarray,
        protocol: ProbeProtocol,
        rows: np.ndarray | None = None,
        *,
        title: str | None = None,
    ) -> ProbeResult:
        """Train probes on features of the training part, or some rows of it, and judge them on the test part.

        Args:
            train: `[n, D]` features of the training part.
            test: likewise.
            protocol: how probes are trained.
            rows: of the training part; all if None.
            title: of progress bars; None: none.
        """
        examples, tested = self.train.examples(train, rows), self.test.examples(test)
        standardisation = standardise(examples)
        answers = [
            fit_probe(examples, len(self.classes), protocol, seed, self.device, standardisation, title=title).answer(
                tested
            )
            for seed in range(protocol.num_seeds)
        ]
        return self.judge(answers, len(examples))

    def judge(self, answers: list[Answers], num_train: int) -> ProbeResult:
        """Answers to the test part."""
        nothing = np.broadcast_to(np.float32(0), (len(self.test), 1))
        return summarise(answers, self.test.examples(nothing), len(self.classes), num_train)

    def subset(self, share: float, seed: int = 0) -> np.ndarray:
        """Rows of the training part with this share of each class, at least one image of it.

        Larger shares hold the smaller ones' images too.

        Raises:
            ValueError: on a share outside 0 < share <= 1.
        """
        check_share(share)
        order = np.random.default_rng(seed).permutation(len(self.train))
        chosen = []
        for label in np.unique(self.train.labels):
            of_class = order[self.train.labels[order] == label]
            chosen.append(of_class[: max(1, round(share * len(of_class)))])
        return np.sort(np.concatenate(chosen))

    def _labelled(self, corpus: ImageCorpus, split: str) -> ImagePart:
        images = corpus.windows(split)
        rows = np.flatnonzero(images.images.labels >= 0)
        return ImagePart(images.subset(rows), images.images.labels[rows])


def check_share(share: float) -> None:
    """Raises a ValueError if there is no such share of labels."""
    if not 0 < share <= 1:
        raise ValueError(f"a share of labels, {share}, must lie above 0 and at most at 1")
