"""How text of users, such as the names of classes, is put into matplotlib's figures."""


def figure_text(text: object) -> str:
    r"""Return text that matplotlib draws as it is: no mathematics, no character that cannot be drawn, in every legend.

    matplotlib reads text between dollars as TeX, leaves labels that begin with an underscore out of legends, and fails
    on halves of characters, which names that are not UTF-8 hold.

    >>> figure_text("$x$"), figure_text("_a\n"), figure_text("n" + chr(0xDCE9))
    ('\\$x\\$', ' _a?', 'n?')
    """
    shown = "".join(each if each.isprintable() else "?" for each in str(text)).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
