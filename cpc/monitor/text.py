"""Text that can be encoded as UTF-8."""


def replace_surrogates(text: object) -> str:
    """Return text with a question mark for each surrogate, as names and records that are not UTF-8 contain.

    >>> replace_surrogates("run" + chr(0xDCFF)), replace_surrogates(3)
    ('run?', '3')
    """
    return str(text).encode("utf-8", "replace").decode("utf-8")
