"""Lines of text by split: from UTF-8 files, a folder of such files, or the prose that ships with Python."""

import hashlib
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from cpc.data.store.contents import draw_splits, say_contents, split_named
from cpc.data.store.fingerprints import Content, text_content
from cpc.data.store.folders import find_files, refuse_bad, refuse_doubles
from cpc.data.store.text_files import decode, marked_encoding, read_text
from cpc.data.store.untrusted import reading
from cpc.data.synthetic.prose import sentences
from cpc.data.text.segmentation import CUT_ANEW, VERSION

EMBEDDED = "embedded"
ALL = "all"  # the only split of a text that is read whole
DEFAULT_SHARE = 0.05
BLOCK_LINES = 20  # number of lines in a block that is held out, so that held-out text has context


class Text:
    """The lines of a source that hold more than white space.

    A word in the name of a file names its split (`ptb.train.txt`, `valid.txt`, `test/1.txt`; `validation` and `dev`
    mean `valid`). If no file names a split, or none `valid`, blocks of 20 lines of the training files are held out by a
    hash of file and position.

    Args:
        source, valid_share, test_share, skip_bad: as in `cpc.data.Text`; shares are those of the blocks.
        is_whole: True to put every line into one split, `all`, whatever the names of the files.

    Attributes:
        digest: SHA-256 of names, contents, splits and segmentation.
        segmentation: lowest version of the rules in `cpc.data.text.segmentation` with the cuts of the current version.
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
        num_blocks = self._count_blocks(skip_bad)
        if not any(num_blocks.values()):
            raise ValueError(f"{source} has only white space: pass a source with text")
        named_splits = dict.fromkeys(num_blocks, ALL) if is_whole else splits_of_names(num_blocks)
        self._block_splits = {name: [named_splits.get(name, "train")] * num for name, num in num_blocks.items()}
        divisible = [name for name in num_blocks if named_splits.get(name, "train") == "train"]
        blocks = [(name, block) for name in divisible for block in range(num_blocks[name])]
        if blocks:  # none if all files are held out
            splits = draw_splits(
                [f"{name}:{block}" for name, block in blocks],
                valid_share=0.0 if "valid" in named_splits.values() else valid_share,
                test_share=0.0 if named_splits else test_share,
                least_files=1,
            )
            for (name, block), split in zip(blocks, splits, strict=True):
                self._block_splits[name][block] = split
        all_splits = [split for splits in self._block_splits.values() for split in splits]
        say_contents(source, f"blocks of {BLOCK_LINES} lines", all_splits)
        self.digest, self.segmentation = self._identify()

    @property
    def splits(self) -> list[str]:
        """Sorted names of the splits that hold a line."""
        return sorted({split for splits in self._block_splits.values() for split in splits})

    def _identify(self) -> tuple[str, int]:
        sha256, is_cut_anew = hashlib.sha256(), False
        for name, lines in self._contents:
            head = f"{name}\n{' '.join(map(str, self._block_splits[name]))}\n"
            sha256.update(head.encode("utf-8", "surrogateescape"))
            for line in lines:
                sha256.update(line.encode() + b"\n")
                is_cut_anew = is_cut_anew or not (line.isascii() or CUT_ANEW.search(line) is None)
        segmentation = VERSION if is_cut_anew else 1
        if is_cut_anew:  # so that packs and runs of an earlier segmentation do not fit this text
            sha256.update(f"segmentation {segmentation}".encode())
        return sha256.hexdigest(), segmentation

    def lines(self, split: str) -> Iterator[str]:
        """Yield the lines of a split, in the order of the files' names."""
        if split not in self.splits:
            raise ValueError(f"{self.source} has no split {split!r}; it has {', '.join(self.splits) or 'no text'}")
        for name, lines in self._contents:
            splits = self._block_splits[name]
            yield from (line for i, line in enumerate(lines) if splits[i // BLOCK_LINES] == split)

    def content(self, split: str) -> Content:
        """Return the content of the blocks of a split (`cpc.data.store.fingerprints`)."""
        blocks = (
            (block_split, "\n".join(islice(lines, BLOCK_LINES)))
            for name, lines in self._contents
            for block_split in self._block_splits[name]
        )
        return text_content(block.encode() for block_split, block in blocks if block_split == split)

    def _count_blocks(self, skip_bad: bool) -> dict[str, int]:
        """Return the number of blocks of lines of each file, and remove unreadable files from `_files`."""
        num_blocks, skipped = {}, []
        for name, lines in self._contents:
            try:
                num_blocks[name] = -(-sum(1 for _ in lines) // BLOCK_LINES)
            except ValueError as error:
                skipped.append(str(error))
        refuse_bad(skipped, len(self._files), "files", skip_bad)
        self._files = {name: self._files[name] for name in num_blocks}
        return num_blocks

    @property
    def _contents(self) -> Iterator[tuple[str, Iterator[str]]]:
        for name, path in self._files.items():
            yield name, iter(sentences()) if path is None else read_lines(path)


def splits_of_names(names: Collection[str]) -> dict[str, str]:
    """Return the split that each name states, or {} if none does; a mixture is a ValueError."""
    splits = {name: split for name in names if (split := split_named(name))}
    unnamed = [name for name in names if name not in splits]
    if splits and unnamed:
        legal = "train, valid or test must be in every name, or in none"
        raise ValueError(f"{next(iter(splits))} names its split, but {unnamed[0]} does not: {legal}")
    return splits


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that hold more than white space, stripped; the file must be UTF-8."""
    with reading(path), path.open("rb") as stream:
        if marked_encoding(stream.read(4))[0] not in (None, "UTF-8"):
            # A binary file cannot be split into lines of UTF-16, since a line end is part of a two-byte unit.
            yield from (text for line in read_text(path).split("\n") if (text := line.strip()))
            return
        offset = stream.seek(0)
        for line in stream:
            if text := decode(line, path, offset=offset).strip():
                yield text
            offset += len(line)


def _files(source: str | Path) -> dict[str, Path | None]:
    """Return the files of a source by name; the embedded prose has the path None."""
    path = Path(source)
    if path.is_dir():
        names = find_files(path, {".txt"}, "text")
        refuse_doubles(path, names)
        return {name: path / name for name in names}
    if path.is_file():
        return {path.name: path}
    if str(source) == EMBEDDED:
        return {EMBEDDED: None}
    raise ValueError(f"{source}: there is no such file or folder of text; {EMBEDDED!r} is Python's own prose")
