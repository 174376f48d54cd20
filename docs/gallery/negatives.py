"""# Negatives decide what is learnt: speakers or phones

A model of CPC learns what tells the right latent from its negatives. If all negatives
come from other speakers, the voice is enough. If they come from the same sentence, only
the sounds are left. This page trains one network on the same speech with either kind,
and probes both for phones and for speakers.
"""

import tempfile

import matplotlib.pyplot as plt

import cpc
from cpc.data.synthetic.speech import synthesize

# %% Speech
# espeak-ng reads eight minutes of English in twelve voices, and tells where each phone
# begins and ends. Four of the voices are kept for testing phones. Speakers are tested
# on other sentences.

folder = tempfile.mkdtemp()
speech = f"{folder}/speech"
manifest = synthesize(speech, num_speakers=12, num_heldout_speakers=4, minutes=8)
minutes = manifest.seconds.sum() / 60
print(f"{len(manifest)} recordings, {minutes:.1f} minutes")

# %% Two trainings
# `sequence_only` takes the negatives from the recording itself, `mixed_excluding` from
# all other recordings of the batch. The calls differ in this one option. A batch holds
# eight recordings of four speakers. A linear probe then reads phones or speakers from
# single frames. Beside the two models stand MFCC, features made by hand, and the same
# network before training.

data = {"manifest": speech, "augmentation": None, "eval_batches": 4}
model = {
    "encoder": {"init_args": {"dim": 128, "hidden_dim": 256}},
    "context": {"init_args": {"dim": 128}},
}
accuracy = {}
for negatives in ("sequence_only", "mixed_excluding"):
    run = cpc.pretrain(
        "configs/small_speech.yaml",
        data,
        run_dir=f"{folder}/{negatives}",
        max_steps=150,
        model=model | {"loss": {"init_args": {"negatives": negatives}}},
    )
    for task, split in (("phones", "test"), ("speaker", "valid")):
        report = cpc.probe(
            run,
            speech,
            task,
            features=["c", "mfcc"],
            baselines=["random"],
            test_split=split,
        )
        for name, result in report["tasks"][task]["results"].items():
            trained = negatives if name == "cpc" else name
            accuracy[trained, task] = result["accuracy_percent"]

# %% What the contexts know
names = ["mfcc", "random", "mixed_excluding", "sequence_only"]
assert accuracy["sequence_only", "phones"] > accuracy["random", "phones"] + 4
assert accuracy["mixed_excluding", "speaker"] > accuracy["random", "speaker"] + 4
assert accuracy["mixed_excluding", "phones"] < accuracy["sequence_only", "phones"]

figure, panels = plt.subplots(1, 2, sharey=True, num="Probes of phones and speakers")
for axes, task in zip(panels, ("phones", "speaker"), strict=True):
    values = [accuracy[name, task] for name in names]
    print(f"{task:8}", *(f"{name} {accuracy[name, task]:.1f} %" for name in names))
    axes.bar_label(axes.barh(names, values), fmt="%.0f", padding=2)
    axes.set(title=task, xlabel="accuracy, %", xlim=(0, 100))
plt.show()

# %% Which to take
# Take `sequence_only` for phones and `mixed_excluding` for speakers. A weighted sum of
# two strategies learns both: `auxiliary_negatives`.

# %% Options used
# [`Contrastive`][cpc.losses.contrastive.Contrastive] ·
# [`probe`][cpc.probes.report.probe] ·
# [five strategies measured](../results/speech.md#table-2-of-the-paper) ·
# [what their curves mean](../theory.md)
