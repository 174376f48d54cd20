"""Escape text of users, such as the names of classes, for matplotlib's figures."""


def figure_text(text: object) -> str:
    r"""Return text that matplotlib draws literally.

    matplotlib reads text between dollar signs as TeX, leaves labels that begin with an underscore out of legends, and
    fails on surrogates, which names that are not UTF-8 hold.

    >>> figure_text("$x$"), figure_text("_a\n"), figure_text("n" + chr(0xDCE9))
    ('\\$x\\$', ' _a?', 'n?')
    """
    escaped = "".join(char if char.isprintable() else "?" for char in str(text)).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped
