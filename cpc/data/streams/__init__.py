"""Which observation comes when: pure functions of (seed, index), resumable, per rank."""
