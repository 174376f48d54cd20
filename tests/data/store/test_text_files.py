"""Declared encodings against the bytes: what is honoured, what is refused and where."""

from pathlib import Path

import pytest
from refusals import refuses

from cpc.data import read_alignments, read_items
from cpc.data.audio.corpora import read_list
from cpc.data.sentences.books import Books
from cpc.data.sentences.labelled import read_labelled
from cpc.data.store.text_files import Encoding, decode, read_text
from cpc.data.text.lines import Text, read_lines

RUSSIAN = "Пошёл дождь. Стало тихо.\n"


@pytest.mark.parametrize("declared", [None, "UTF-8", "latin-1", "windows-1252"])
@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_a_byte_order_mark_says_the_encoding(declared: Encoding | None, mark: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((("\ufeff" if mark == "utf-16-be" else "") + RUSSIAN).replace("\n", "\r\n").encode(mark))
    assert read_text(path, declared) == RUSSIAN
    assert list(read_lines(path)) == [RUSSIAN.strip()]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_refused_everywhere(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Nul bytes. Every other one.\n".encode(encoding))
    place = int(encoding == "utf-16-le")
    message = rf"a\.txt, byte {place}: a NUL, .*iconv -f {encoding.replace('-', '').replace('utf', 'UTF-').upper()[:8]}"
    for read in (read_list, read_items, read_labelled, read_text, Text, lambda each: read_text(each, "latin-1")):
        refuses(message, read, path)
    refuses(message, Books, tmp_path, valid_share=0.2, test_share=0.2, encoding="latin-1")
    with pytest.raises(ValueError, match=r"a\.phn, byte"):
        _ = read_alignments(path.rename(tmp_path / "a.phn")).labels


def test_a_nul_in_the_middle_of_a_file_is_found_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nth\0ree\n")
    refuses(r"a\.txt, byte 10: a NUL", list, read_lines(path))


@pytest.mark.parametrize("declared", ["latin-1", "windows-1252"])
@pytest.mark.parametrize("text", ["Ein Übel, größer als nötig. " * 9, "सत्य की जीत", "naïve", "“curly” quotes", "😀"])
def test_utf8_that_is_declared_latin_is_refused(declared: Encoding, text: str) -> None:
    beyond = [character for character in text if not character.isascii()]
    place = len(text[: text.index(beyond[0])].encode())
    num_bytes = sum(len(character.encode()) for character in beyond)
    refuses(rf"b\.txt, byte {place}: {declared} .* of the {num_bytes} bytes", decode, text.encode(), "b.txt", declared)
    mostly = (text * 20).encode() + b" caf\xe9"  # one stray byte does not make the rest Latin
    refuses(r"set `encoding` to UTF-8", decode, mostly, "b.txt", declared)
    assert decode(text.encode(), "b.txt", "UTF-8") == text


@pytest.mark.parametrize(
    "text", ["«CAFÉ»", "Äpfel für Öl, ß", "São João, ã ç õ", "50 °C ± 2 Å", "plain", "", "Ã", "É»ä»ü"]
)
def test_latin_text_stays_latin(text: str) -> None:
    for declared in ("latin-1", "windows-1252"):
        assert decode(text.encode("latin-1"), "b.txt", declared) == text
    assert decode("“so”".encode("cp1252"), "b.txt", "windows-1252") == "“so”"


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        ("é".encode("latin-1"), None, "byte 0: 0xe9 is not UTF-8 .*; convert the file to UTF-8"),
        (b"\x81", "windows-1252", "byte 0: 0x81 is not windows-1252"),
        ("odd".encode("utf-16") + b"a", None, "byte 8: 0x61 is not UTF-16LE"),
        ("a\0b".encode("utf-16"), None, "character 1: a NUL"),
    ],
)
def test_bytes_out_of_the_encoding_are_named(content: bytes, encoding: Encoding | None, message: str) -> None:
    refuses(rf"^b\.txt, {message}", decode, content, "b.txt", encoding)
