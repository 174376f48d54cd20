"""Command-line options from function signatures, model descriptions in configs, and rules for arguments and YAML."""
