"""Training: the LightningModule, the data module, the run's folder, `cpc pretrain`."""
