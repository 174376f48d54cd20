"""Agents whose encoder and context are those of a CPC model: environment -> z, c -> policy, value, and the CPC loss."""
