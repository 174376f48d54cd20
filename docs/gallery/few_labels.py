"""# Few labels: probe, fine-tune or train with labels only

Somebody recorded hours and labelled minutes. The labels can train a linear probe on
frozen features, fine-tune the pretrained network, or train the same network from
scratch. Which is best for 3, 12 and 100 labelled sentences?
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import cpc
from cpc.data.synthetic.speech import synthesize

# %% A model, pretrained on speech without labels

folder = tempfile.mkdtemp()
speech = f"{folder}/speech"
manifest = synthesize(speech, num_speakers=12, num_heldout_speakers=4, minutes=8)
run = cpc.pretrain(
    "configs/small_speech.yaml",
    {"manifest": speech, "augmentation": None, "eval_batches": 4},
    run_dir=f"{folder}/run",
    max_steps=200,
    model={
        "encoder": {"init_args": {"dim": 128, "hidden_dim": 256}},
        "context": {"init_args": {"dim": 128}},
    },
)

# %% Three uses of the labels
# The task is the phone of every 10 ms, tested on 18 sentences of speakers who are new
# to the model. `cpc.probe` trains the probe, and as its baselines the two networks: for
# 200 steps each, so that the result does not depend on the speed of the machine.

uses = {"fine_tuned": "fine-tuned", "cpc": "probe", "supervised": "labels only"}
numbers = (3, 12, 100)
accuracy = {use: [] for use in uses}
train = np.random.default_rng(0).permutation(manifest.rows("train"))
for number in numbers:
    labelled = f"{speech}/{number}.csv"
    manifest.take([*train[:number], *manifest.rows("test")]).write(labelled)
    report = cpc.probe(
        run,
        labelled,
        "phones",
        features=["c"],
        baselines=["supervised", "fine_tuned"],
        supervised={"seconds": None, "num_steps": 200, "learning_rate": 4e-3},
    )
    for use in uses:
        result = report["tasks"]["phones"]["results"][use]
        accuracy[use].append(result["accuracy_percent"])

# %% Which is best
for use, name in uses.items():
    print(f"{name:12}", *(f"{percent:5.1f} %" for percent in accuracy[use]))
tuned, frozen, scratch = accuracy.values()
assert min(tuned[0], frozen[0]) > scratch[0]
assert min(tuned[2], scratch[2]) > frozen[2]

figure, axes = plt.subplots(num="Accuracy of three uses by the number of labels")
for use, name in uses.items():
    axes.plot(numbers, accuracy[use], "o-", label=name)
axes.set(xscale="log", xticks=numbers, xticklabels=numbers)
axes.set(xlabel="labelled sentences", ylabel="accuracy, %")
axes.legend()
plt.show()

# %% Options used
# [`probe`][cpc.probes.report.probe] · [results on speech](../results/speech.md)
