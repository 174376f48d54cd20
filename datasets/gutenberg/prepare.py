"""Check the thirteen books of Project Gutenberg: python datasets/gutenberg/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.sentences.books import Books

NUM_BOOKS, NUM_SENTENCES = 13, 48_865
SHARE = 0.1  # the same as in configs/sentences/gutenberg.yaml


def prepare_gutenberg(root: str | Path) -> dict[str, tuple[str, int]]:
    """Read the books and their splits; their source is in datasets/gutenberg/card.md.

    Args:
        root: the folder of the `*.txt` files.

    Returns:
        Split and number of sentences of each book.

    Raises:
        ValueError: if the number of books or of sentences differs from the card.
    """
    books = Books(root, valid_share=SHARE, test_share=SHARE, encoding="latin-1")
    found = {name: (split, len(books.sentences(name))) for name, split in zip(books.names, books.splits, strict=True)}
    num_sentences = sum(num for _, num in found.values())
    if (len(found), num_sentences) != (NUM_BOOKS, NUM_SENTENCES):
        raise ValueError(
            f"{root} holds {len(found)} books with {num_sentences} sentences, not the {NUM_BOOKS} with {NUM_SENTENCES} "
            "of the card: another selection?"
        )
    return found


def describe(found: dict[str, tuple[str, int]]) -> str:
    """Return a line for each book."""
    return "\n".join(f"{split:>6} {num:>6} sentences  {name}" for name, (split, num) in found.items())


if __name__ == "__main__":
    prepare_from_command_line(prepare_gutenberg, describe)
