"""C sources and their loader, settings of memory, processor and threads, and a report on the environment."""
