"""Declared encodings against the bytes, and the one reader of delimited tables: what they take and refuse."""

import csv
import os
from pathlib import Path

import pytest
from refusals import refuses

from cpc.data import Manifest, read_alignments, read_items, read_manifest
from cpc.data.audio.corpora import read_list
from cpc.data.audio.index import join_labels
from cpc.data.sentences.books import Books
from cpc.data.sentences.labelled import read_labelled
from cpc.data.store.text_files import Encoding, decode, format_table, read_table, read_text
from cpc.data.text.lines import Text, read_lines
from cpc.interop.hub_datasets import write_labels

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


def write(path: Path, text: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def table(path: Path) -> list[tuple[int, list[str]]]:
    names, rows = read_table(path)
    return [(0, names), *rows]


def test_a_quote_in_tabs_is_an_ordinary_character_unless_its_line_is_well_formed(tmp_path: Path) -> None:
    lines = [
        "clip\tsentence\tage",
        '1\t"Yes, he said.\t30',
        '2\t5" of rain\t',
        '3\t"so ""it"" is"\t"4\t0"',
        '4\t"a\tb"',
    ]
    file = write(tmp_path / "a.tsv", "\n".join([*lines[:3], lines[4], ""]))
    assert table(file)[1:] == [(2, ["1", '"Yes, he said.', "30"]), (3, ["2", '5" of rain', ""]), (4, ["4", '"a', 'b"'])]
    file = write(tmp_path / "b.TSV", "\n".join([lines[0], lines[3]]))
    assert table(file)[1:] == [(2, ["3", 'so "it" is', "4\t0"])]


def test_a_quote_that_never_closes_joins_no_rows(tmp_path: Path) -> None:
    """Three clips, of which the second's sentence begins with a quote: each has its own age."""
    rows = [("a.wav", "hi", "20"), ("b.wav", '"oh', "30"), ("c.wav", 'no"', "40")]
    labels = write(tmp_path / "l.tsv", "".join("\t".join(row) + "\n" for row in [("path", "text", "age"), *rows]))
    found = join_labels([path for path, *_ in rows], labels, "path")
    assert found == {"text": ["hi", '"oh', 'no"'], "age": ["20", "30", "40"]}


@pytest.mark.parametrize("content", ["\n\r\n a,b \r\n1,2\r\n\r\n,\r\n,,,\n \n", "a,b\r1,2\r,\r", "a,b\n1,2"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_empty_lines_line_ends_and_a_byte_order_mark(tmp_path: Path, content: str, mark: str) -> None:
    names, rows = read_table(write(tmp_path / "a.csv", mark + content.replace(" a,b ", "a,b")))
    assert (names, [cells for _, cells in rows]) == (["a", "b"], [["1", "2"]])


def test_what_other_programs_quote_is_read_as_they_meant_it(tmp_path: Path) -> None:
    cells = ["x, y", 'say "z"', "", "\u2028 \x85", 'in"side', " kept "]
    for quoting in (csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC):
        with (tmp_path / "a.csv").open("w", newline="") as stream:
            csv.writer(stream, quoting=quoting).writerows([list("abcdef"), cells])
        assert table(tmp_path / "a.csv")[1:] == [(2, cells)]
    write(tmp_path / "a.csv", format_table({name: [cell] for name, cell in zip("abcdef", cells, strict=True)}))
    assert table(tmp_path / "a.csv")[1:] == [(2, cells)]


READERS = {
    "manifest": lambda path: read_manifest(path, check_files=False),
    "labels": lambda path: join_labels(["a.wav"], path, "path"),
    "alignments": read_alignments,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path;start;end;label\na.wav;0;1;x\n", r"line 1: has semicolons between .* expected commas, UTF-8"),
        ("path\tstart\tend\tlabel\na.wav\t0\t1\tx\n", r"line 1: has tabs .* \(.tsv: tabs\)"),
        ("path,start,end,label\na.wav,0,1,x\n".encode("utf-16"), "is UTF-16; expected commas, UTF-8"),
        ("path,start,end,label\na.wav,0,1,x\n".encode("utf-16-le"), "holds NUL bytes, as UTF-16 and"),
        (b"PK\x03\x04\x14\x00\x00\x00", "as UTF-16 and spreadsheets do"),
        ('\n{"path": "a.wav", "start": 0, "end": 1, "label": "x"}\n', "is JSON, or JSON lines; expected commas, UTF-8"),
        ('path,start,end,label\na.wav,0,1,"x\ny"\n', r"line 2: .*continues in the next line.*close in its line"),
        ('path,start,end,label\na.wav,0,1,y\nb.wav,0,1,"x\nc.wav,0,1,y\n', r"line 3: is not a row of a CSV"),
        ("path,start,end,label\na.wav,0,1,x\nb.wav,0,1\n", r"line 3: 3 cells for 4 columns"),
        ("path,start,end,label,\na.wav,0,1,x,\n", r"line 1: the column name '' is empty"),
        ("path, start,end,label\na.wav,0,1,x\n", r"line 1: the column name ' start' .* begins or ends with a blank"),
        ("path,start,end,label,path\na.wav,0,1,x,b\n", "line 1 names a column twice"),
        ("\n \n", "is empty; expected a header"),
    ],
)
def test_every_table_refuses_by_the_same_words(tmp_path: Path, reader: str, content: str | bytes, message: str) -> None:
    refuses(rf"a\.csv.*{message}", READERS[reader], write(tmp_path / "a.csv", content))


def test_text_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "path,age\n" + "a,1\n" * 5000 + "é,2\n", "latin-1")
    refuses(r"a\.csv, line 5002: is not UTF-8 .*expected commas, UTF-8", join_labels, ["a"], file, "path")


def test_a_line_break_is_not_written_into_a_table(tmp_path: Path) -> None:
    broken = Manifest(tmp_path, {"path": ["a.wav", "b.wav"], "text": ["x", "one\rtwo"]})
    refuses(r"1 cells of a table hold a line break.*\n  text: 'one\\rtwo'", broken.write, tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()
    with pytest.warns(UserWarning, match=r"line breaks inside 1 labels were written as blanks"):
        write_labels({"a.wav": {"text": "one\r\ntwo"}, "b.wav": {}}, tmp_path / "labels.csv")
    assert table(tmp_path / "labels.csv")[1:] == [(2, ["a.wav", "one two"]), (3, ["b.wav", ""])]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("offset,sample_rate_hz,num_samples\na.wav,0.25,8000,8000\n", r"a\.wav: offset is '0\.25', but must be 0"),
        ("duration,sample_rate_hz,num_samples\na.wav,1.5,8000,16000\n", r"duration is '1\.5', but the file las"),
        ("duration,sample_rate_hz,num_samples\na.wav,2000,8000,16000\n", r"lasts 2 s; cpc reads whole files"),
        ("duration,sample_rate_hz,num_samples\na.wav,short,8000,16000\n", r"duration is 'short'.*rename the column"),
    ],
)
def test_parts_of_files_are_refused(tmp_path: Path, columns: str, message: str) -> None:
    refuses(rf"m\.csv: .*{message}", read_manifest, write(tmp_path / "m.csv", f"path,{columns}"), check_files=False)


def test_offsets_and_durations_of_whole_files_are_labels(tmp_path: Path) -> None:
    text = "path,offset,duration,num_samples,sample_rate_hz\na.wav,0.0,2.01,16000,8000\nb.wav,,,80000,8000\n"
    manifest = read_manifest(write(tmp_path / "m.csv", text), check_files=False)
    assert manifest.seconds.tolist() == [2, 10]
    with pytest.raises(ValueError, match=r"x\.csv: has the column offset beside start and end"):
        read_alignments(write(tmp_path / "x.csv", "path,start,end,label,offset\na,0,1,x,3\n"))


@pytest.mark.parametrize("name", ["manifest.csv", "labels.tsv"])
def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refuses(f"{name} is a FIFO, not a regular file", read_table, tmp_path / name)


def test_a_nul_anywhere_in_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("path,label\n" + "a.wav,b\n" * 20_000 + "c.wav,d\0e\n")
    refuses("line 20002: holds a NUL", list, read_table(path)[1])
