"""Pretraining: the LightningModule, the data module, the run's folder and `cpc pretrain`."""
