"""calibration.html: estimates against truths as one page that needs neither network nor server."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from cpc.calibration.charts import Row, course_chart, estimate_chart
from cpc.quickstart.charts import Chart
from cpc.quickstart.page import sections, write_sections

HEADING = """<h1>cpc calibrate: estimators of information against known truths</h1>
<p>What each estimator reads from matrices of N x N scores, where the information is known in closed form: with the
exact critic, whose shortcomings are the estimator's alone, and with critics that were trained.</p>
"""
READING = """<p><b>Sides.</b> A <i>lower</i> bound lies below the truth in the mean, whatever the critic: not on every
matrix. NWJ, TUBA and JS have no ceiling, and pay with a variance that grows as exp(I): of few negatives the mean of
exp(s) is nearly always too small. InfoNCE pays with its ceiling log N, and below it with a bias that the dashed line
shows. <i>Neither</i>: DV and MINE take the logarithm of a sample's mean and read too much; SMILE's clipping moves it
either way. <i>leave_one_out</i> is an upper bound, and needs the conditional density.</p>
<p><b>n/a.</b> A reading that is not finite: additive uniform noise has pairs that cannot be, whose exact score is minus
infinity; and where no negative is possible, nothing bounds the estimate.</p>
<p><b>Alike.</b> With the exact critic NWJ, TUBA and JS are one and the same, as are DV and MINE: they differ in how a
critic is trained for them.</p>
"""


def write_calibration_page(path: Path, report: dict[str, Any]) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        report: of `calibrate`.

    Raises:
        ValueError: if plotly is not installed.
    """
    words = f"{report['num_matrices']} matrices for each mean; seed {report['seed']}; {report['seconds']:.0f} s."
    if report["training"]:
        words = f"{report['steps']} training steps at each information; {words}"
    heading = [HEADING, f'<p class="facts">{escape(words)}</p>\n']
    write_sections(path, chain(heading, sections(_charts(report))), [READING], title="cpc calibrate")


def _charts(report: dict[str, Any]) -> Iterator[Chart]:
    for rows in _by_place(report["rows"]):
        place = _place(rows[0])
        exact = [row for row in report["rows"] if _place(row) == (*place[:3], "exact")] if place[3] != "exact" else []
        yield estimate_chart(rows[0], rows, [row for row in exact if row["estimator"] == "info_nce"])
        courses = [course for course in report["training"] if _place(course) == _place(rows[0])]
        if courses:
            yield course_chart(rows[0], courses)


def _by_place(rows: Sequence[Row]) -> Iterator[list[Row]]:
    for place in dict.fromkeys(map(_place, rows)):
        yield [row for row in rows if _place(row) == place]


def _place(row: Row) -> tuple[Any, ...]:
    return row["task"], row["dim"], row["num_candidates"], row["critic"]
