"""The parts that audio and signals share: packs, windows, the corpus, labels and probe data of recordings."""
