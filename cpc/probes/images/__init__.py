"""Judging image representations: frozen features of whole images, probes, neighbours, labels needed, fine-tuning."""
