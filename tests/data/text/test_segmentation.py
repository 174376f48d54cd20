"""Words and sentences of many scripts, cut by hand; nothing is lost between them."""

import re
import time
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpc.data.text.segmentation import CUT_ANEW, WORD, normal_form, split_sentences
from cpc.data.text.vocabulary import chunks

ENGLISH_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")  # as every run before version 2 cut it
ENGLISH_CHUNK = re.compile(r"\u2581?(?:\w+|[^\w\s\u2581]+)")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("हिन्दी में, क्षत्रिय", "हिन्दी|में|,|क्षत्रिय"),
        ("கொழும்பு நகரம்.", "கொழும்பு|நகரம்|."),
        ("كَتَبَ الوَلَدُ؟", "كَتَبَ|الوَلَدُ|؟"),
        ("בְּרֵאשִׁית בָּרָא. צה״ל", "בְּרֵאשִׁית|בָּרָא|.|צה״ל"),
        (normalize("NFD", "Tiếng Việt rất đẹp"), "Tiếng|Việt|rất|đẹp"),
        (normalize("NFD", "ἄνθρωπος, ψυχή"), "ἄνθρωπος|,|ψυχή"),
        (normalize("NFD", "ёлка, мой чай"), "ёлка|,|мой|чай"),
        ("İstanbul'da çay", "İstanbul'da|çay"),
        ("می‌روم خانه", "می‌روم|خانه"),
        ("我喜欢GPT很多", "我|喜|欢|GPT|很|多"),
        ("東京タワーへ行く。", "東|京|タワー|へ|行|く|。"),
        ("กินข้าว 3 ที่", "กิ|น|ข้|า|ว|3|ที่"),
        (normalize("NFD", "한국어 공부"), "한국어|공부"),
        ("ok 👩🏽‍🚀❤️ 🇫🇮!", "ok|👩🏽‍🚀|❤️|🇫🇮|!"),
        ("l'été, don’t 3.5", "l'été|,|don’t|3|.|5"),
        ("ភាសា\u200bខ្មែរ", None),
    ],
)
def test_words_keep_their_marks(line: str, words: str | None) -> None:
    found = WORD.findall(normal_form(line))
    if words is not None:
        assert found == [normal_form(word) for word in words.split("|")]
    assert all(normal_form(word) == word for word in found)
    assert "".join(found) == re.sub(r"[\s\u200b]", "", normal_form(line))


@pytest.mark.parametrize(
    "sentences",
    [
        ["वह घर गया।", "मैं यहाँ हूँ।", "तुम?", "हाँ!"],
        ["डॉ. शर्मा आए।", "ठीक है."],
        ["அவன் வந்தான்.", "அவள் போனாள்."],
        ["هل قرأت الكتاب؟", "نعم قرأته.", "د. سمير هنا."],
        ["הוא בא.", "היא הלכה!", "א. ב. יהושע כתב."],
        ["Πού πας;", "Έλα εδώ.", "Όχι!"],
        ["Он ушёл.", "«Где?» спросила она.", "— Там.", "— Ёлка!"],
        ["Geldi mi?", "İyi.", "Şimdi git.", "Çok güzel!"],
        ["¿Qué hora es?", "¡Las dos!", "«Ya voy.»", "(Él calló.)", "Árbol."],
        ["« Bonjour. »", "Élise sourit.", "« À demain ! »", "Il part."],
        ["„Komm.“", "Übermut tut gut.", "»Ja.«", "Er ging…", "Öfter."],
        ["Đi đâu?", "Ăn cơm.", "Ừ."],
        ["他走了。", "“你好！”", "3点？", "很好！！"],
        ["雨だ。", "「行こう。」", "はい．", "１．５倍です。"],
        ["네.", "그래요.", "좋다!"],
        ["ის წავიდა.", "მე აქ ვარ."],
        ["Նա գնաց։", "Լավ։"],
        ["٣ كتب.", "٤ أقلام."],
    ],
)
def test_sentences_of_many_scripts(sentences: list[str]) -> None:
    for form in ("NFC", "NFD"):
        own = [normalize(form, each) for each in sentences]
        assert split_sentences(" ".join(own)) == own


def test_some_scripts_set_no_space_between_sentences() -> None:
    assert split_sentences("他来了。她走了！真的？") == ["他来了。", "她走了！", "真的？"]
    assert split_sentences("値は３．５だ．次へ．") == ["値は３．５だ．", "次へ．"]
    assert split_sentences("राम।श्याम।") == ["राम।", "श्याम।"]
    assert chunks("हिन्दी, নতুন❤️! می‌روم") == ["▁हिन्दी", ",", "▁নতুন", "❤️!", "▁می‌روم"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_nothing_is_lost_but_white_space(text: str) -> None:
    bare = re.sub(r"\s", "", text)
    assert re.sub(r"\s", "", "".join(split_sentences(text))) == bare
    assert "".join(chunks(text)).replace("\u2581", "") == "".join(text.split()).replace("\u2581", "")
    assert "".join(WORD.findall(text)) == bare.replace("\u200b", "")


@given(st.text(st.characters(max_codepoint=0x24F, exclude_categories=["Cf"], exclude_characters="\u2581")))
def test_latin_letters_are_cut_as_before(text: str) -> None:
    if "\u0130" not in text:
        assert CUT_ANEW.search(text) is None
    assert WORD.findall(text) == ENGLISH_WORD.findall(text)
    assert chunks(text) == ENGLISH_CHUNK.findall("".join("\u2581" + word for word in text.split()))


def test_rows_of_marks_take_linear_time() -> None:
    begin = time.perf_counter()
    for text in ("." * 50_000, "A. " * 20_000, "a" * 50_000 + ".", "\u0301" * 50_000, "«" * 50_000, "; " * 50_000):
        split_sentences(text)
        WORD.findall(text)
        chunks(text)
    assert time.perf_counter() - begin < 5
