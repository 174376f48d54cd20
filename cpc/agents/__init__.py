"""Agents on the encoder and context of a CPC model: environment -> z, c -> policy, value, and the CPC loss."""
