"""# Few labels: probe, fine-tune or train with labels only

Somebody recorded hours and labelled minutes. The labels can train a linear probe on frozen features, fine-tune the
pretrained network, or train the same network from scratch. Which is best for 3, 12 and 100 labelled sentences?
"""

import copy
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import cpc
from cpc.data import read_alignments, read_audio, window_labels
from cpc.data.features import Features
from cpc.data.synthetic.speech import synthesize

# %% Two models: pretrained on speech without labels, and untrained (one step)
folder = tempfile.mkdtemp()
manifest = synthesize(f"{folder}/speech", num_speakers=12, num_heldout_speakers=4, minutes=8, progress=False)
data = {"manifest": f"{folder}/speech", "augmentation": None, "eval_batches": 4}
small = {"encoder": {"init_args": {"dim": 128, "hidden_dim": 256}}, "context": {"init_args": {"dim": 128}}}
models = []
for steps in (200, 1):
    run = cpc.pretrain("configs/small_speech.yaml", data, run_dir=f"{folder}/{steps}", max_steps=steps, model=small)
    models.append(cpc.load_pretrained(run))
pretrained, untrained = models

# %% Labelled sentences
# The task is the phone of every 10 ms, tested on 18 sentences of speakers who are new to the model.

alignments, times = read_alignments(f"{folder}/speech/alignments.csv"), Features("c", pretrained)
classes = {label: index for index, label in enumerate(alignments.labels)}
train, test = [], []
for part, chosen in ((manifest.select("train"), train), (manifest.select("test"), test)):
    for row in np.random.default_rng(0).permutation(len(part))[:100]:
        wave = read_audio(part.files[row], 16_000)
        labels = window_labels(alignments.segments(part.paths[row]), times, 0, len(wave) // 160, classes)
        chosen.append((torch.from_numpy(wave), torch.from_numpy(labels)))

# %% Three uses of the labels
# One loop serves all three. With a learning rate of zero the network stays frozen and only the head learns: a probe.


def accuracy(model: cpc.CPC, num_sentences: int, rate: float) -> float:
    rng, model, head = np.random.default_rng(0), copy.deepcopy(model), nn.Linear(128, len(classes))
    groups = [{"params": model.parameters(), "lr": rate}, {"params": head.parameters(), "lr": 1e-2}]
    optimiser = torch.optim.AdamW(groups)
    x = torch.cat([wave.unfold(0, 16_000, 4_000) for wave, _ in train[:num_sentences]])  # one second each
    y = torch.cat([labels.unfold(0, 100, 25) for _, labels in train[:num_sentences]])
    for _ in range(200):
        rows = rng.integers(len(x), size=8)
        loss = nn.functional.cross_entropy(head(model.encode(x[rows])[1]).flatten(0, 1), y[rows].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.inference_mode():
        right = [head(model.encode(wave[None])[1][0]).argmax(1) == labels for wave, labels in test]
    return 100 * torch.cat(right).float().mean().item()


NUMS, found = (3, 12, 100), {}
uses = {"fine-tuned": (pretrained, 5e-4), "probe": (pretrained, 0.0), "labels only": (untrained, 2e-3)}
for name, (model, rate) in uses.items():
    found[name] = [accuracy(model, num, rate) for num in NUMS]
    print(f"{name:12}", *(f"{percent:5.1f} %" for percent in found[name]))
assert min(found["fine-tuned"][0], found["probe"][0]) > found["labels only"][0]
assert min(found["fine-tuned"][2], found["labels only"][2]) > found["probe"][2]

figure, axes = plt.subplots(num="With few labels pretraining wins, with many a frozen network falls behind")
for name, percent in found.items():
    axes.plot(NUMS, percent, "o-", label=name)
axes.set(xscale="log", xlabel="labelled sentences", ylabel="accuracy, %", xticks=NUMS, xticklabels=NUMS)
axes.legend()
plt.show()

# %% Options used
# [`probe`][cpc.probes.report.probe], which compares the three · [results on speech](../results/speech.md)
