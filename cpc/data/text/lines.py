"""Text, line by line and split by split: of UTF-8 files, of a folder of them, or the prose that ships with Python."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from cpc.data.store.contents import say_contents
from cpc.data.store.folders import find_files, name_a_few, refuse_doubles
from cpc.data.store.splits import draw_splits, split_named
from cpc.data.store.text_files import decode, marked_encoding, read_text
from cpc.data.store.untrusted import reading
from cpc.data.synthetic.prose import sentences
from cpc.data.text.segmentation import CUT_ANEW, VERSION

EMBEDDED = "embedded"
ALL = "all"  # the one split of a text that is read whole
DEFAULT_SHARE = 0.05
BLOCK_LINES = 20  # held out together, so that held-out text is read in its context


class Text:
    """The lines of a source that hold more than white space.

    A file belongs to the split that a word of its name says (`ptb.train.txt`, `valid.txt`, `test/1.txt`; `validation`
    and `dev` are `valid`). Where no file names one, blocks of 20 lines are held out, by a hash of file and place; where
    files are named but none `valid`, that split is held out of the training files in the same way.

    Args:
        source: a UTF-8 file, or one of UTF-16 with its byte-order mark; a folder, all of whose `*.txt` files are read,
            at any depth; or `embedded`, the prose of `pydoc_data.topics` (`cpc.data.synthetic.prose`).
        valid_share: expected share of the blocks in a `valid` that has no file.
        test_share: likewise, in a `test` where no file names a split.
        skip_bad: go on without files that are not UTF-8, and say how many.
        is_whole: every line is of one split, `all`, whatever the files' names.

    Attributes:
        digest: of names, contents, splits and segmentation, in hexadecimal.

    Raises:
        ValueError: if there is no text file or none holds a line, some files name a split and others do not, there
            are too few lines to hold some out, or a file is not UTF-8.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        valid_share: float = DEFAULT_SHARE,
        test_share: float = DEFAULT_SHARE,
        skip_bad: bool = False,
        is_whole: bool = False,
    ) -> None:
        self.source = source
        self._files = _files(source)
        num_blocks_of = self._counted_blocks(skip_bad)
        if not any(num_blocks_of.values()):
            raise ValueError(f"{source} holds no line: give it text")
        named = {name: ALL if is_whole else split_named(name) for name in num_blocks_of}
        nameless = [name for name, split in named.items() if split is None]
        if 0 < len(nameless) < len(named):
            one = next(name for name, split in named.items() if split)
            raise ValueError(
                f"{one} names its split, but {nameless[0]} does not: put train, valid or test in every file's name, or "
                "in none"
            )
        self._split_of = {name: [named[name] or "train"] * num_blocks for name, num_blocks in num_blocks_of.items()}
        drawn = [name for name, split in named.items() if split in (None, "train")]
        blocks = [(name, block) for name in drawn for block in range(num_blocks_of[name])]
        if blocks:  # held-out text may come without what it was held out of
            splits = draw_splits(
                [f"{name}:{block}" for name, block in blocks],
                valid_share=0.0 if "valid" in named.values() else valid_share,
                test_share=test_share if nameless else 0.0,
            )
            for (name, block), split in zip(blocks, splits, strict=True):
                self._split_of[name][block] = split
        say_contents(
            source, f"blocks of {BLOCK_LINES} lines", [split for splits in self._split_of.values() for split in splits]
        )

    @property
    def splits(self) -> list[str]:
        """Those that hold a line."""
        return sorted({split for file_items in self._split_of.values() for split in file_items})

    @property
    def digest(self) -> str:
        """SHA-256 of names, contents, splits and segmentation."""
        return self._digest_and_segmentation[0]

    @property
    def segmentation(self) -> int:
        """The first version of the rules (`cpc.data.text.segmentation`) that cut the text as the present ones do."""
        return self._digest_and_segmentation[1]

    @cached_property
    def _digest_and_segmentation(self) -> tuple[str, int]:
        found, is_cut_anew = hashlib.sha256(), False
        for name, lines in self._contents:
            head = f"{name}\n{' '.join(map(str, self._split_of[name]))}\n"
            found.update(head.encode("utf-8", "surrogateescape"))
            for line in lines:
                found.update(line.encode() + b"\n")
                is_cut_anew = is_cut_anew or not (line.isascii() or CUT_ANEW.search(line) is None)
        segmentation = VERSION if is_cut_anew else 1
        if is_cut_anew:  # packs and runs of an earlier segmentation are of another text
            found.update(f"segmentation {segmentation}".encode())
        return found.hexdigest(), segmentation

    def lines(self, split: str) -> Iterator[str]:
        """The lines of a split, in the order of the files' names.

        Raises:
            ValueError: if it has none, naming the splits there are; on bytes that are not UTF-8.
        """
        if split not in self.splits:
            raise ValueError(
                f"{self.source} has no split {split!r}; it has {', '.join(self.splits) or 'none: it holds no text'}"
            )
        for name, lines in self._contents:
            of_block = self._split_of[name]
            yield from (line for number, line in enumerate(lines) if of_block[number // BLOCK_LINES] == split)

    def _counted_blocks(self, skip_bad: bool) -> dict[str, int]:
        """How many blocks of lines each file has; files that cannot be read are left out of all that follows."""
        found, skipped = {}, []
        for name, lines in self._contents:
            try:
                found[name] = -(-sum(1 for _ in lines) // BLOCK_LINES)
            except ValueError as error:
                if not skip_bad:
                    raise
                skipped.append(str(error))
        self._files = {name: self._files[name] for name in found}
        if skipped:
            print(f"{len(skipped)} of {len(skipped) + len(found)} files skipped:\n{name_a_few(skipped)}")
        return found

    @property
    def _contents(self) -> Iterator[tuple[str, Iterator[str]]]:
        for name, path in self._files.items():
            yield name, iter(sentences()) if path is None else read_lines(path)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file that hold more than white space, without it at their ends.

    Raises:
        ValueError: as `cpc.data.store.text_files.decode`, on bytes that are not UTF-8, naming the first.
    """
    with reading(path), path.open("rb") as stream:
        if marked_encoding(stream.read(4))[0] not in (None, "UTF-8"):
            # line ends of UTF-16 are no bytes of their own
            yield from (text for line in read_text(path).split("\n") if (text := line.strip()))
            return
        offset = stream.seek(0)
        for line in stream:
            if text := decode(line, path, offset=offset).strip():
                yield text
            offset += len(line)


def _files(source: str | Path) -> dict[str, Path | None]:
    """Files by their name below the source; None is the embedded prose."""
    path = Path(source)
    if path.is_dir():
        names = find_files(path, {".txt"}, "text")
        refuse_doubles(path, names)
        return {name: path / name for name in names}
    if path.is_file():
        return {path.name: path}
    if str(source) == EMBEDDED:
        return {EMBEDDED: None}
    raise ValueError(
        f"{source}: there is no such file or folder of text; {EMBEDDED!r} is the prose that ships with Python"
    )
