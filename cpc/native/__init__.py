"""The machine: C sources and their loader, memory, the processor's settings, and a report about them."""
