"""Text from files and folders as every page, file and terminal can carry it."""


def replace_surrogates(text: object) -> str:
    """In words, with a question mark for each half of a character: of names and records that are not UTF-8.

    >>> replace_surrogates("run" + chr(0xDCFF)), replace_surrogates(3)
    ('run?', '3')
    """
    return str(text).encode("utf-8", "replace").decode("utf-8")
