"""Text: lines, vocabularies, streams of tokens."""
