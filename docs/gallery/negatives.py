"""# Negatives decide what is learnt: speakers or phones

A model of CPC learns what tells the right latent from its negatives. If all negatives come from other speakers, the
voice is enough. If they come from the same sentence, only the sounds are left. This page trains one network on the same
speech with either kind, and probes both for phones and for speakers.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import cpc
from cpc.data.synthetic.speech import synthesize

# %% Speech
# espeak-ng reads eight minutes of English in twelve voices, and tells where each phone begins and ends. Four of the
# voices are kept for testing phones. Speakers are tested on other sentences.

folder = tempfile.mkdtemp()
manifest = synthesize(f"{folder}/speech", num_speakers=12, num_heldout_speakers=4, minutes=8, progress=False)
print(f"{len(manifest)} recordings, {manifest.seconds.sum() / 60:.1f} minutes")

# %% Two trainings
# `sequence_only` takes the negatives from the recording itself, `mixed_excluding` from all other recordings of the
# batch. The calls differ in this one option. A batch holds eight recordings of four speakers.

data = {"manifest": f"{folder}/speech", "augmentation": None, "eval_batches": 4}
small = {"encoder": {"init_args": {"dim": 128, "hidden_dim": 256}}, "context": {"init_args": {"dim": 128}}}
tested = {"phones": "test", "speaker": "valid"}
accuracy = {}
for negatives in ("sequence_only", "mixed_excluding"):
    model = small | {"loss": {"init_args": {"negatives": negatives}}}
    run_dir = f"{folder}/{negatives}"
    run = cpc.pretrain("configs/small_speech.yaml", data, run_dir=run_dir, max_steps=150, model=model)
    for task, split in tested.items():
        options = {"features": ["c", "mfcc"], "baselines": ["random"], "test_split": split}
        report = cpc.probe(run, f"{folder}/speech", task, **options)
        results = report["tasks"][task]["results"]
        accuracy[negatives, task] = results["cpc"]["accuracy_percent"]
        for name in ("mfcc", "random"):
            accuracy[name, task] = results[name]["accuracy_percent"]

# %% What the contexts know
# A linear probe reads phones or speakers from single frames. Beside the two models stand MFCC, features made by hand,
# and the same network before training.

names = ["mfcc", "random", "mixed_excluding", "sequence_only"]
print("accuracy, %      phones  speakers")
for name in names:
    print(f"{name:16} {accuracy[name, 'phones']:6.1f}  {accuracy[name, 'speaker']:8.1f}")
assert accuracy["sequence_only", "phones"] > accuracy["random", "phones"] + 4
assert accuracy["mixed_excluding", "speaker"] > accuracy["random", "speaker"] + 4
assert accuracy["mixed_excluding", "phones"] < accuracy["sequence_only", "phones"]

figure, axes = plt.subplots(num="Negatives of the same recording teach phones, others teach speakers")
for offset, (task, colour) in zip((-0.2, 0.2), (("phones", "#2079b8"), ("speaker", "#d55e00")), strict=True):
    values = [accuracy[name, task] for name in names]
    bars = axes.barh(np.arange(4) + offset, values, 0.36, color=colour, label=task)
    axes.bar_label(bars, fmt="%.0f", padding=2)
axes.set(xlabel="accuracy, %", xlim=(0, 100), yticks=range(4), yticklabels=["MFCC", "untrained", *names[2:]])
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %% Which to take
# Take `sequence_only` for what is said and `mixed_excluding` for who says it. A weighted sum of two strategies learns
# both: `auxiliary_negatives`.

# %% Options used
# [`Contrastive`][cpc.losses.contrastive.Contrastive] · [`probe`][cpc.probes.report.probe] ·
# [five strategies measured](../results/speech.md#table-2-of-the-paper) · [what their curves mean](../theory.md)
