import warnings
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from refusals import refuses
from shared_data import real

from cpc.data import Audio, Manifest, Segment, write_items
from cpc.data.audio.alignments import Alignments, Track, check_alignments, read_alignments, window_labels
from cpc.data.sharding import shard_corpus
from cpc.encoders import AudioEncoder

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 0.5
tiers? <exists>
size = 3
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 0.5
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 0.5
            text = "say ""2 = two"" [1]"
    item [2]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 0.5
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 0.125
            text = "s"
        intervals [2]:
            xmin = 0.125
            xmax = 0.25
            text = ""
        intervals [3]:
            xmin = 0.25
            xmax = 0.5
            text = "ɛː"
    item [3]:
        class = "TextTier"
        name = "clicks"
        xmin = 0
        xmax = 0.5
        points: size = 1
        points [1]:
            number = 0.3
            mark = "x"
"""

SHORT = (
    'File type = "ooTextFile"\n"TextGrid"\n\n0\n0.5\n<exists>\n2\n'
    '"IntervalTier"\n"words"\n0\n0.5\n1\n0\n0.5\n"say ""2 = two"" [1]"\n'
    '"IntervalTier"\n"phones"\n0\n0.5\n3\n0\n0.125\n"s"\n0.125\n0.25\n""\n0.25\n0.5\n"ɛː"\n'
)

PHONES = [Segment(0.0, 0.125, "s"), Segment(0.25, 0.5, "ɛː")]


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return path


def test_phn_positions_are_samples_at_16_khz_and_csv_columns_have_names(tmp_path):
    file = write(tmp_path / "x.csv", "label,word,end,start,path\na,w,0.5,0.25,d/u.wav\n,,0.25,0,d/u.wav\n")
    assert read_alignments(file).segments("d/u.wav") == [Segment(0.0, 0.25, ""), Segment(0.25, 0.5, "a")]
    file = write(tmp_path / "sa1.PHN", "0 3200 h#\n3200 4000 sh\n")
    assert read_alignments(file).segments("sa1.wav") == [Segment(0.0, 0.2, "h#"), Segment(0.2, 0.25, "sh")]


PENN = SHORT.replace('"ooTextFile"', '"ooTextFile short"')  # as the Penn aligner names the short format


@pytest.mark.parametrize("text", [LONG, SHORT, PENN], ids=["long", "short", "penn"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_textgrid_reads_the_same_long_and_short_in_every_encoding(tmp_path, text, encoding):
    file = write(tmp_path / "a.TextGrid", text, encoding)
    assert read_alignments(file).segments("a.flac") == PHONES
    assert read_alignments(file, tier="words").segments("a.flac") == [Segment(0.0, 0.5, 'say "2 = two" [1]')]
    single = SHORT.replace("<exists>\n2", "<exists>\n1").split('"IntervalTier"\n"phones"')[0]  # it needs no name
    assert read_alignments(write(tmp_path / "a.TextGrid", single)).labels == ['say "2 = two" [1]']


@pytest.mark.parametrize("command", ["items", "probe", "pretrain"])
def test_the_tier_reaches_the_reader(tmp_path, command):
    """Each command that reads alignments, by the function or the fields that its options are made of."""
    grid = write(tmp_path / "grid" / "a.TextGrid", LONG.replace('"phones"', '"segments"'))
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)
    Manifest(tmp_path, {"path": ["a.wav"], "speaker": ["ann"]}).write(tmp_path / "manifest.csv")
    encoder = AudioEncoder(4)

    def labels(**options):
        source = {"manifest": str(tmp_path), "alignments": str(grid.parent), **options}
        if command == "items":
            write_items(tmp_path, tmp_path / "x.item", **{name: source[name] for name in source if name != "manifest"})
        data = Audio(**source)
        corpus = data.open(encoder, is_training=command == "pretrain")
        if command == "pretrain":
            return set(corpus.classes)
        return data.probe_data(encoder, corpus, train_split=None).labels("phones", np.array([0])).names(0)

    refuses(r"no interval tier 'phones'; .* words, segments \(and .*clicks\); set `tier", labels)
    if command == "items":
        refuses("no phone of the 1 files has a neighbour", labels, tier="segments")
    else:
        assert labels(tier="segments") == {"s", "ɛː"}
    assert {"alignments", "tier"} <= {*Audio.probe_options} & {*Audio.local_options}


def test_a_tier_of_what_has_none_is_refused(tmp_path):
    refuses(r"words: .*a\.phn is not a TextGrid", read_alignments, write(tmp_path / "a.phn", "0 100 x\n"), tier="words")
    refuses("needs the TextGrids", Audio(manifest=str(tmp_path), tier="words").open, None, is_training=True)


def test_only_the_tier_that_is_read_must_be_free_of_overlaps(tmp_path):
    """TIMIT's words overlap where they share a phone: as a tier beside the phones they do no harm."""
    words = SHORT.replace('1\n0\n0.5\n"say', '2\n0\n0.3\n"your"\n0.2\n0.5\n"say')
    file = write(tmp_path / "a.TextGrid", words)
    assert read_alignments(file).segments("a.flac") == PHONES
    refuses(r"line 16: .* overlaps .* ends at 0\.3 s", read_alignments(file, tier="words").segments, "a.flac")


def test_ctm_neighbours_that_overlap_by_rounding_meet_where_the_later_begins(tmp_path):
    """Start and duration of 0.244 to 0.376 s are 0.24 and 0.13 s, whose sum is 0.37; those of 0.376 s on are 0.38."""
    rng = np.random.default_rng(0)
    edges = np.cumsum(rng.uniform(0.03, 0.2, 300))
    lines = [f"u 1 {a:.2f} {b - a:.2f} p{i}\n" for i, (a, b) in enumerate(pairwise(edges))]
    segments = read_alignments(write(tmp_path / "a.ctm", "".join(lines))).segments("u")
    assert [segment.label for segment in segments] == [f"p{i}" for i in range(299)]
    assert all(a.end_seconds <= b.start_seconds for a, b in pairwise(segments))
    assert np.allclose([segment.start_seconds for segment in segments], edges[:-1], atol=0.0051)
    assert np.allclose([segment.end_seconds for segment in segments], edges[1:], atol=0.0101)
    rounded = edges[:-1] + np.diff(edges).round(2)
    assert any(f"{a:.2f}" != f"{b:.2f}" for a, b in zip(edges[1:], rounded, strict=True))
    file = write(tmp_path / "fields.ctm", "u 1 0 0.5 a\u00a0b NA lex ann\nu 1 0.5 0.5 \u2028c 0.9\n")
    assert read_alignments(file).labels == ["\u2028c", "a\u00a0b"][::-1]


def test_a_byte_order_mark_is_no_part_of_the_first_utterance(tmp_path):
    for name, text in (("a.txt", "u1 1 2\n"), ("b.ctm", "u1 1 0 1 x\n")):
        assert read_alignments(write(tmp_path / name, text, "utf-8-sig")).names == ["u1"]


def test_ctm_groups_files_and_adds_durations(tmp_path):
    lines = ";; comment\nutt2 1 0.10 0.05 b\nutt1 A 0 0.5 a 0.9\nutt2 1 0.00 0.10 a\nutt2 1 0.1 0 x\n"  # x: no duration
    alignments = read_alignments(write(tmp_path / "x.ctm", lines))
    assert alignments.names == ["utt2", "utt1"]
    assert [label for *_, label in alignments.segments("spk/utt2.flac")] == ["a", "b"]
    assert alignments.segments("spk/utt2.flac")[1].end_seconds == pytest.approx(0.15)


def test_aligned_phones_merges_runs_of_10_ms(tmp_path):
    file = write(tmp_path / "converted_aligned_phones.txt", "u1 3 3 3 10 10 3\nu2 7\n")
    alignments = read_alignments(file)
    starts_and_ends = [0, 0.03, 0.05, 0.06]
    segments = alignments.segments("spk/chapter/u1.flac")
    assert [label for *_, label in segments] == ["3", "10", "3"]
    assert np.allclose([start for start, *_ in segments], starts_and_ends[:-1])
    assert np.allclose([end for _, end, _ in segments], starts_and_ends[1:])
    assert alignments.labels == ["3", "7", "10"]  # by value, not as strings


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.phn", "0 100 x\n100 y\n", r"a\.phn, line 2: '100 y' is not"),
        ("a.phn", "0 100 x\n50 200 y\n", r"line 2.*'y'.*overlaps"),
        ("a.phn", "200 100 x\n", r"line 1.*ends before"),
        ("a.phn", "-5 100 x\n", r"line 1.*before 0"),
        ("a.ctm", "a 1 0 1e400 p\n", r"a\.ctm, line 1: .*not finite"),
        ("a.csv", f"path,start,end,label\na,0,1,{'p' * 200_000}\n", r"line 2: is not a row of a CSV \(field larger"),
        ("a.txt", f"b 1 2\na 1 {10**20} 2\n", r"a\.txt, line 2: '10+' is not a label id"),
        ("a.TextGrid", '"ooTextFile" "TextGrid" 0 1\n<exists> 1e400 "x"', r"line 2: expected a count, found inf"),
        ("a.phn", "0 100 x\n200 300 y\n100 200 z\n", r"a\.phn, line 3: begins at 0\.00625 s, before the line above"),
        ("a.ctm", "u 1 0.0 0.5 a\nu 1 0.489 0.5 b\n", r"line 2.*'b'.*overlaps"),
        ("a.ctm", "u 1 0.0 0.5 New York\n", r"line 1: 'York' is not a number"),
        ("a.ctm", "u 1 0.0 0.5 a 0.9 lex spk more\n", r"line 1.*is not 'file channel"),
        ("a.txt", "u1 1 2\0\n", r"a\.txt holds NUL bytes"),
        ("a.ctm", "u 1 0.0 0.5 a\nu 2 0.5 0.5 b\n", r"line 2: u has channels 1 and 2"),
        ("a.csv", "path,start,label\n", r"no column end"),
        ("a.csv", "path,start,end,label\nu,0,1,a\nu,1,2s,b\n", r"line 3: '2s'"),
        ("a.txt", "u1 1 2\nu2 -1\n", r"line 2: -1 is not a label id"),
        ("a.txt", "u1 1 2\nu2\n", r"line 2: u2 has no labels"),
        ("a.txt", "u1 1\nu2 1\nu1 2\n", r"line 3: u1 also has the line 1"),
        ("a.TextGrid", LONG.replace("xmax = 0.125", "xmax = 0.3"), r"line 30.* overlaps .* ends at 0\.3 s"),
        ("a.TextGrid", LONG.replace('"words"', '"phones"'), r"line 21: .* second interval tier, found phones"),
        ("a.TextGrid", LONG.replace("points: size = 1", "points: size = 0"), r"line 44: expected the end .*0\.3"),
        ("a.TextGrid", SHORT.replace('0.5\n"ɛː', '0.7\n"ɛː'), "0.7 s ends after its tier, at 0.5 s"),
        ("a.TextGrid", SHORT.replace("0\n0.5\n<", "0.5\n0\n<"), r"line 5: expected an end that is not before"),
        ("a.TextGrid", SHORT.replace("IntervalTier", "Interval"), "line 8: expected IntervalTier or TextTier, found"),
        ("a.TextGrid", SHORT.replace('"s"', '"s\ns"'), r"line 21: .* 's\\ns' from 0 s to 0\.125 s has a line break"),
        ("a.TextGrid", SHORT[:-20], r"line 25: expected a string, found the end of the file"),
    ],
)
def test_malformed_lines_are_named(tmp_path, name, text, message):
    file = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        _ = read_alignments(file).labels


def test_paths_match_exactly_then_without_suffix_then_by_stem(tmp_path):
    track = Track(np.array([0.0]), np.array([1.0]), ["a"])
    alignments = Alignments(dict.fromkeys(["d/u.wav", "d/u.flac", "e/u.wav", "d/v.wav", "spk.001"], track))
    assert alignments.name_of("d/u.flac") == "d/u.flac"
    assert alignments.name_of("e/u.mp3") == "e/u.wav"
    assert alignments.name_of("elsewhere/v.flac") == "d/v.wav"
    assert alignments.name_of("spk.001.wav") == "spk.001"
    assert alignments.name_of("spk.wav") is None
    assert "spk.wav" not in alignments
    assert "d/u.ogg" in alignments
    refuses(r"d/u\.ogg: 2 alignments(.|\n)*d/u\.wav\n\s*d/u\.flac", alignments.segments, "d/u.ogg")
    refuses("3 alignments", alignments.segments, "f/u.wav")
    refuses(r"nowhere\.wav: .* has no alignment", alignments.segments, "nowhere.wav")


def test_a_folder_of_phn_files_matches_by_path_even_where_stems_repeat(tmp_path):
    for speaker in ("dr1/fa", "dr2/mb"):
        write(tmp_path / "train" / speaker / "sa1.phn", f"0 160 {speaker[-1]}\n")
    alignments = read_alignments(tmp_path)
    assert alignments.segments("train/dr1/fa/sa1.wav")[0].label == "a"
    assert alignments.segments("TIMIT/train/dr2/mb/sa1.wav")[0].label == "b"  # the audio's tree starts higher
    assert alignments.segments("dr2/mb/sa1.wav")[0].label == "b"  # or deeper


def test_a_folder_with_two_formats_is_refused(tmp_path):
    write(tmp_path / "a.phn", "0 1600 p\n")
    write(tmp_path / "b.TextGrid", SHORT)
    refuses(r"holds files of \.phn, \.textgrid; name a folder", read_alignments, tmp_path)
    write(tmp_path / "alignments.csv", "path,start,end,label\nc.wav,0,1,q\n")
    assert read_alignments(tmp_path).names == ["c.wav"]


def test_what_is_not_there_says_what_is_expected(tmp_path):
    refuses("neither a file nor a folder", read_alignments, tmp_path / "absent.csv")
    refuses(r"no alignments\.csv, \.phn, \.TextGrid or \.ctm files", read_alignments, tmp_path)
    refuses(r"a\.lab: the suffix='\.lab' is not one of \.phn", read_alignments, write(tmp_path / "a.lab", ""))
    refuses("holds no alignments", read_alignments, write(tmp_path / "a.ctm", ""))
    (tmp_path / "a.ctm").unlink()
    write(tmp_path / "x" / "b.ctm", "u 1 0 1 a\n")
    write(tmp_path / "y" / "c.ctm", "u 1 0 1 a\n")
    refuses(r"u is aligned in both .*b\.ctm and .*c\.ctm", read_alignments, tmp_path)


def test_unmatched_files_are_reported_on_both_sides(tmp_path):
    def check(alignments: Alignments, *paths: str) -> None:
        check_alignments(alignments, seconds_manifest(tmp_path, dict.fromkeys(paths, 1)), range(len(paths)))

    alignments = read_alignments(write(tmp_path / "a.txt", f"u1 {'1 ' * 100}\nu2 1\nu3 1\n"))
    check(alignments, "s/u1.wav", "s/u4.wav")
    refuses(r"1 of 1 audio files have no alignment(.|\n)*u4\.wav(.|\n)*3 align(.|\n)*u3", check, alignments, "s/u4.wav")
    doubled = read_alignments(write(tmp_path / "b.csv", "path,start,end,label\nd/u.wav,0,1,a\ne/u.wav,0,1,a\n"))
    refuses("2 alignments", check, doubled, "u.wav")


def seconds_manifest(folder, seconds_of):
    """A manifest of files at 8 kHz that last so long."""
    counts = {"num_samples": [str(round(8000 * seconds)) for seconds in seconds_of.values()]}
    return Manifest(folder, {"path": list(seconds_of), **counts, "sample_rate_hz": ["8000"] * len(seconds_of)})


def test_labels_that_end_after_their_audio_are_refused_with_both_times(tmp_path):
    manifest = seconds_manifest(tmp_path, {"a.wav": 1.5, "b.wav": 2, "c.wav": 3, "d.wav": 1})
    table = "a 1 0.0 1500 x\nb 1 0 1.0 x\nb 1 1.0 1.04 y\nc 1 1 2.06 z\n"  # b ends 40 ms after its audio, c 60 ms
    alignments = read_alignments(write(tmp_path / "x.ctm", table))
    with pytest.raises(ValueError, match=r"2 of 3 labelled (.|\n)*a\.wav: labels until 1500 s, audio until 1\.5") as e:
        check_alignments(alignments, manifest, range(4))
    assert "c.wav: labels until 3.06 s, audio until 3 s" in str(e.value)
    assert "b.wav" not in str(e.value)
    check_alignments(alignments, manifest, [1, 3, 1])


@pytest.mark.parametrize("num_samples", [8000, 16_000])
def test_positions_of_another_rate_are_told_by_the_audio_they_leave_unlabelled(tmp_path, num_samples):
    """`.phn` counts samples at 16 kHz: where they are of 8 kHz, the labels end half way."""
    for name in ("a", "b"):
        write(tmp_path / f"{name}.phn", f"0 4000 h\n4000 {num_samples} sh\n")
    alignments = read_alignments(tmp_path)
    manifest = seconds_manifest(tmp_path, {"a.wav": 1, "b.wav": 1})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_alignments(alignments, manifest, [0, 1])
    assert [str(each.message).partition(" (")[0] for each in told] == (
        [f"{tmp_path}: the last label of a file ends at 0.5 of its audio"] if num_samples == 8000 else []
    )


def test_a_corpus_whose_labels_do_not_fit_is_not_sharded(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)
    Manifest(tmp_path, {"path": ["a.wav"]}).write(tmp_path / "manifest.csv")
    write(tmp_path / "alignments.csv", "path,start,end,label\na.wav,0,500,x\n")
    refuses(r"a\.wav: labels until 500 s, audio until 0\.5 s", shard_corpus, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lengths_come_from_headers_where_the_manifest_has_none(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)
    (tmp_path / "bad.wav").touch()
    manifest = Manifest(tmp_path, {"path": ["a.wav", "bad.wav"]})
    assert manifest.seconds[0] == 0.5
    assert np.isnan(manifest.seconds[1])
    alignments = read_alignments(write(tmp_path / "x.csv", "path,start,end,label\na,0,0.7,x\nbad,0,9,y\n"))
    refuses(r"a\.wav: labels until 0\.7 s, audio until 0\.5 s", check_alignments, alignments, manifest, [0, 1])


def test_alignments_without_any_label_are_refused(tmp_path):
    alignments = read_alignments(write(tmp_path / "x.ctm", "a 1 0.5 0 x\n"))
    refuses("1 audio files hold no label", check_alignments, alignments, seconds_manifest(tmp_path, {"a.wav": 1}), [0])


def labels_in_a_loop(segments, num_frames, hop_seconds, first_centre_seconds, classes):
    found = []
    for frame in range(num_frames):
        centre = first_centre_seconds + hop_seconds * frame
        label = [classes.get(s.label, -100) for s in segments if s.start_seconds <= centre < s.end_seconds]
        found.append(label[0] if label else -100)
    return found


def frame_labels(segments, num_frames, hop_seconds, first_centre_seconds, classes):
    times = SimpleNamespace(sample_rate_hz=1, hop_samples=hop_seconds, first_centre_samples=first_centre_seconds)
    return window_labels(segments, times, 0, num_frames, classes)


@pytest.mark.parametrize("seed", range(5))
def test_frame_labels_equal_a_loop_over_frames(seed):
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.uniform(0, 2, 24))
    segments = [
        Segment(float(start), float(end), str(rng.choice(list("abcd"))))
        for start, end in zip(edges[::2] if seed else edges[:-1], edges[1::2] if seed else edges[1:], strict=True)
    ]
    arguments = (segments, 230, 0.01, -0.05 + 0.0145, {"a": 0, "b": 1, "c": 5})
    labels = frame_labels(*arguments)
    assert labels.dtype == np.int64
    assert labels.tolist() == labels_in_a_loop(*arguments)
    assert {-100, 0, 1, 5} == set(labels.tolist())


def test_frame_labels_of_nothing_are_unlabelled():
    assert frame_labels([], 3, 0.01, 0.0, {"a": 0}).tolist() == [-100] * 3
    assert frame_labels([Segment(0.0, 1.0, "a")], 0, 0.01, 0.0, {"a": 0}).shape == (0,)
    # half-open: a boundary belongs to the later segment
    segments = [Segment(0.0, 0.5, "a"), Segment(0.5, 1.0, "b")]
    assert frame_labels(segments, 4, 0.25, 0.25, {"a": 0, "b": 1}).tolist() == [0, 1, 1, -100]


def test_the_librispeech_fixture_of_cpc_audio():
    tiny = real("librispeech_tiny/cpc/test_data")
    alignments = read_alignments(tiny / "phone_labels.txt")
    audio = {file.relative_to(tiny).as_posix(): file for file in tiny.rglob("*.flac")}
    assert (sum(path in alignments for path in audio), len(audio), len(alignments)) == (2, 9, 6)
    assert set(alignments.labels) <= {str(label) for label in range(41)}
    classes = {label: int(label) for label in alignments.labels}
    lines = dict(line.split(maxsplit=1) for line in (tiny / "phone_labels.txt").read_text().splitlines())
    for path, file in audio.items():
        if path not in alignments:
            continue
        ids = [int(label) for label in lines[file.stem].split()]
        segments = alignments.segments(path)
        assert frame_labels(segments, len(ids), 0.01, 0.005, classes).tolist() == ids
        duration_seconds = soundfile.info(file).duration
        assert 0 <= duration_seconds - segments[-1].end_seconds < 0.03  # a label or two short, never longer
