"""Images: sources, packs, patches, augmentation."""
