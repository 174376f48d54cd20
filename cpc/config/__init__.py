"""Configs and options: from functions to command lines, from YAML to objects, and the values that they may have."""
