import re
import subprocess
import sys

from cpc.data.synthetic.prose import MAX_WORDS, MIN_WORDS, digest, extract, sentences

REFERENCE = """The "for" statement
*******************

The "for" statement is used to iterate over the *elements* of a
sequence.  Any "NameError" exception (see section Exceptions) stops
it, e.g. at once:

   for_stmt ::= "for" target_list "in" starred_list ":" suite
                ["else" ":" suite]

   >>> for x in y: print(x)
   This is the output of code x = 3.

Note: Names like "__init__()" and "my_name" are read as words. The
expression "x < y" calls "x.__lt__(y)". There are 12 of them.

* This item stands in a list of items.

1. So does this other item of it.

object.__str__(self)

   Called by the function "print()" to compute the “informal”
   representation.

Changed in version 3.4: The method raises no error any more.

+-----------+------------------------------------------------+
| The table | has cells that look like a proper sentence here. |

-[ Footnotes ]-

[1] A footnote is a proper sentence too, as this one [2] shows.

This sentence is much longer than a breath allows, which is why it falls apart at its commas, because nobody reads on.
Too short now.
"""


def test_only_speakable_sentences_remain():
    assert extract({"for": REFERENCE}) == (
        "The for statement is used to iterate over the elements of a sequence.",
        "Any name error exception stops it, for example at once.",
        "Names like init and my name are read as words.",
        "This item stands in a list of items.",
        "So does this other item of it.",
        "Called by the function print to compute the informal representation.",
        "The method raises no error any more.",
        "A footnote is a proper sentence too, as this one shows.",
        "This sentence is much longer than a breath allows.",
        "Which is why it falls apart at its commas, because nobody reads on.",
    )


def test_duplicates_and_the_order_of_topics_do_not_matter():
    one, other = "The cat sat on the mat.", "The dog sat on the log."
    twice = extract({"b": f"{one} {other}", "a": f"{other}\n\nThe DOG sat on the log. The dog Sat on the log."})
    assert twice == (other, one)


def test_this_python_holds_thousands_of_clean_sentences():
    text = sentences()
    assert len(text) > 1500
    assert len({sentence.lower() for sentence in text}) == len(text)
    for sentence in text:
        assert re.fullmatch(r"[A-Z][A-Za-z]*(?:[,;:]? [A-Za-z]+(?:['-][a-z]+)*|['-][a-z]+)*[.!?]", sentence), sentence
        assert MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def test_the_sentences_read_like_english():
    # Independent of how they were found: function words are about half of English prose, and a tenth of code.
    function_words = set(
        "the a an of to in is are be as and or if that this it by for with not on from at which can may must when "
        "will has have was all any no its these such but into than then also only".split()
    )
    words = [word.strip(".,;:!?").lower() for sentence in sentences() for word in sentence.split()]
    assert 0.4 < sum(word in function_words for word in words) / len(words) < 0.6
    assert len(set(words)) > 1500  # and they are about many things
    assert sum(len(word) < 2 and word not in "ai" for word in words) == 0


def test_the_text_is_the_same_in_every_process():
    code = "from cpc.data.synthetic.prose import digest, sentences; print(digest(sentences()))"
    command = [sys.executable, "-X", "utf8=0", "-c", code]
    printed = {
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {digest(sentences())}
    assert digest(sentences()[1:]) not in printed
