"""Sentences: books, windows of consecutive sentences, labelled sentences."""
