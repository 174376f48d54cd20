"""English sentences from the language reference in `pydoc_data.topics`, a part of every Python installation.

Speech is synthesised from them, so only sentences of words are kept. Long sentences are divided at their clauses. A
name that is made of words becomes these words: `IndexError` is "index error".
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

MIN_WORDS = 4
MAX_WORDS = 16

# These abbreviations are spelt out. Their full stops would otherwise end a sentence.
SPOKEN = {
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "and so on",
    "vs.": "versus",
    "\u2019": "'",
    " \u2014 ": ", ",
}

UNDERLINE = re.compile(r"^\s*([*=~^-])\1{2,}\s*$", re.MULTILINE)
LIST_MARKER = re.compile(r"^\s*(?:[*•-]|\d+\.|\[\d+\]|[a-z]\))\s+")
NOTICE = re.compile(r"^(?:\*\*[^*]+:\*\*|(?:Changed|New|Added|Deprecated)\b[^:]{0,30}\d:?|[A-Z][a-z]+( also)?:)\s+")
EMPHASIS = re.compile(r"(\*\*?)([^*]+)\1")
ASIDE = re.compile(r"\s*(?:\([^()]*\)|\[\d+\])")
CODE = re.compile(r'"([^"]*)"')
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
CONJUNCTION = "although|because|but|if|since|so|unless|when|where|whereas|which|while"
CLAUSE_END = re.compile(rf"(?<=[,;:])\s+|\s+(?=(?:{CONJUNCTION})\s)")
DANGLING = re.compile(rf"(?:[,;:]?\s(?:and|or|{CONJUNCTION}))+$")
WORD = re.compile(r"(?=.*[aeiouy])[A-Za-z][a-z]+(?:['-][a-z]+)*|[aAI]")


@cache
def sentences() -> tuple[str, ...]:
    """Return the sentences of the reference of this Python version, in a fixed order, without duplicates."""
    from pydoc_data.topics import topics

    return extract(topics)


def digest(lines: Iterable[str]) -> str:
    """Return the SHA-256 of the lines in hexadecimal, which identifies a text in a record of provenance."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def extract(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the prose sentences of texts in Sphinx's format by title, in the order of titles, without duplicates."""
    unique: dict[str, str] = {}
    for title in sorted(texts):
        for paragraph in re.split(r"\n\s*\n", texts[title]):
            for sentence in paragraph_sentences(paragraph):
                unique.setdefault(sentence.lower(), sentence)
    return tuple(unique.values())


def paragraph_sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph that consist of words, with long sentences divided into clauses."""
    if UNDERLINE.search(paragraph):
        return
    for sentence in SENTENCE_END.split(plain_text(paragraph)):
        if not sentence.endswith((".", "!", "?", ":")):
            continue
        for clause in clauses(sentence):
            mark = clause[-1] if clause[-1] in "!?" else "."
            clause = DANGLING.sub("", clause.rstrip(",;:.!?"))
            words = clause.split()
            if MIN_WORDS <= len(words) <= MAX_WORDS and all(WORD.fullmatch(word.rstrip(",;:")) for word in words):
                yield clause[0].upper() + clause[1:] + mark


def plain_text(paragraph: str) -> str:
    """Return a paragraph on one line, without markers, notices, emphasis, asides in brackets or quotes of words."""
    lines = paragraph.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines]
    if len(lines) > 1 and indents[1] > indents[0] and not LIST_MARKER.match(lines[0]):
        lines = lines[1:]  # in a definition list the first line is the term
    text = NOTICE.sub("", LIST_MARKER.sub("", " ".join(" ".join(lines).split())))
    for written, spoken in SPOKEN.items():
        text = text.replace(written, spoken)
    text = EMPHASIS.sub(r"\2", CODE.sub(spoken_code, text))
    while ASIDE.search(text):
        text = ASIDE.sub("", text)
    return re.sub(r"[“”]|\s+(?=[,;:.])", "", text)


def spoken_code(match: re.Match[str]) -> str:
    """Return code as separate words; code that is not made of words keeps its quotes, and its sentence is removed."""
    words = re.findall(r"[A-Z]?[a-z]+|\S", match[1].removesuffix("()").replace("_", " "))
    return " ".join(words).lower() if words and all(len(word) > 1 for word in words) else match[0]


def clauses(sentence: str) -> list[str]:
    """Divide a sentence of more than `MAX_WORDS` words at its clauses, into as few pieces as possible."""
    pieces: list[str] = []
    for part in CLAUSE_END.split(sentence) if len(sentence.split()) > MAX_WORDS else [sentence]:
        if pieces and len(pieces[-1].split()) + len(part.split()) <= MAX_WORDS:
            pieces[-1] += " " + part
        else:
            pieces.append(part)
    return pieces
