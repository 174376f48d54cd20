"""# Patches: what an image model finds alike

A model of images cuts an image into patches that overlap, and gives each patch a latent
z. Which latents are close? `photographs-small`, which ships with cpc, answers for
photographs that it never saw. For a model of your own, put its run folder in the place
of its name, and your images in that of the photographs.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage import data
from sklearn.manifold import TSNE
from torch.nn.functional import normalize, pad

import cpc
from cpc.data.images.patch_augmentation import PatchAugmentation

# %% Squares and patches
# Four photographs of scikit-image are cut into squares of 96 pixels. The model reads 25
# patches of a square, one every 16 pixels. Training with `augmentation: v2` shifts,
# mirrors and turns each patch by itself, and changes its colours, so that matching
# edges do not tell which patches are neighbours.

squares = []
for pixels in (data.astronaut(), data.cat(), data.coffee(), data.rocket()):
    cut = torch.from_numpy(pixels).unfold(0, 96, 96).unfold(1, 96, 96)
    squares.append(cut.flatten(0, 1) / 255)  # [squares, 3, 96, 96]
x = torch.cat(squares)
photograph = np.repeat(range(4), [25 * len(each) for each in squares])  # of each patch
model = cpc.load_pretrained("photographs-small")
grid = model.encoder.grid
patches = grid.patches(x)  # [squares, 5, 5, 3, 32, 32]
augment = PatchAugmentation("v2", grid, fill=x.mean((0, 2, 3)))

figure, panels = plt.subplots(1, 3, figsize=(6, 2.3), num="Patches as cut and changed")
changed = augment(x[7:8], keys=np.array([0]))
shown = {"a square": x[7:8, None, None], "cut": patches[7:8], "changed": changed}
for axes, (title, pixels) in zip(panels, shown.items(), strict=True):
    sheet = pad(pixels[0], (0, 4, 0, 4), value=1).permute(0, 3, 1, 4, 2)
    axes.imshow(sheet.flatten(2, 3).flatten(0, 1))
    axes.set_title(title)
    axes.axis("off")

# %% Nearest patches
# Each row has a patch, and the patches of other squares whose latents, less their mean,
# have the largest cosines.

with torch.inference_mode():
    z, c, _ = model.encode(x)
square = torch.arange(len(x)).repeat_interleave(25)  # of each patch
unit = normalize((z - z.mean((0, 1, 2))).flatten(0, 2), dim=1)
nearest = (unit @ unit.T).masked_fill(square[:, None] == square, -1).topk(6).indices
found = np.mean(photograph[nearest[:, 0]] == photograph)
chance = np.mean(photograph[:, None] == photograph)
print(f"nearest patches of the same photograph: {found:.0%}, by chance {chance:.0%}")
assert found > chance + 0.4

figure, rows = plt.subplots(4, 7, figsize=(4.5, 2.8), num="Patches and their nearest")
for row, query in zip(rows, [350, 900, 1280, 2068], strict=True):
    for axes, patch in zip(row, [query, *nearest[query]], strict=True):
        axes.imshow(patches.flatten(0, 2)[patch].permute(1, 2, 0))
        axes.axis("off")

# %% A map of contexts
# Squares lie at the two dimensions that t-SNE finds for the means of their contexts.

points = TSNE(perplexity=15, random_state=0).fit_transform(c.mean((1, 2)).numpy())
figure, axes = plt.subplots(num="Squares at the places of their contexts")
for (left, bottom), pixels in zip(points, x, strict=True):
    place = (left, left + 1, bottom, bottom + 1)
    axes.imshow(pixels[:, ::2, ::2].permute(1, 2, 0), extent=place)
axes.axis((points.min(), points.max() + 1) * 2)
axes.set_axis_off()
plt.show()

# %% Options used
# [`load_pretrained`][cpc.checkpoint.load_pretrained] ·
# [`CPC.encode`][cpc.model.CPC.encode] · [data](../data.md) · [results on
# images](../results/images.md)
