"""The report as one HTML file that needs nothing else: no script, no host, no font.

What models and servers say is hostile input. Every text becomes markup in `app.diagnose.markup`, which makes control
characters visible and escapes the rest, and the page's own policy lets nothing be loaded or run, should that fail.
"""

from collections.abc import Iterator
from typing import Final

from app.comparison.page import HEAD
from app.diagnose import page_parts as parts
from app.diagnose.markup import safe
from app.diagnose.page_examples import examples, shown
from app.diagnose.plot_answers import agreement, batch_map
from app.diagnose.plot_forks import margins, positions
from app.diagnose.plot_modes import modes
from app.diagnose.report import Report

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#59636e;--paper:#fff;--line:#d5dbe1;--a:#fde2dd;--b:#d9f0e1;
--red:#b3261e;--blue:#1f5fbf;--green:#1b7f4b;--amber:#9a6200;--violet:#7a3db8;--teal:#00708a;--pink:#a3246b}
@media(prefers-color-scheme:dark){:root{--ink:#e3e7eb;--soft:#9aa5b1;--paper:#14181c;--line:#333b44;--a:#4a231f;
--b:#1b3d29;--red:#ff8a80;--blue:#7fb2ff;--green:#6fd49b;--amber:#e5b567;--violet:#c9a0ff;--teal:#62cfe6;
--pink:#f291c4}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2.5rem}h3{font-size:1rem;margin:0 0 .5rem}
.wide{overflow-x:auto}
table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.3rem 1.2rem .3rem 0}
td{overflow-wrap:anywhere;min-width:6rem}td:last-child{min-width:14rem}tr{border-bottom:1px solid var(--line)}
th{font-weight:600}
figure figcaption{color:var(--soft);font-size:.9rem;max-width:40rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:2rem}
figure{margin:0;min-width:0}figure td:last-child{min-width:4.5rem}
svg{display:block;width:100%;min-width:32rem;max-width:44rem;height:auto;font-size:13px}
svg text{fill:currentColor}svg .small{font-size:11px}svg .tick,svg .name{fill:var(--soft)}
.axis{stroke:var(--soft)}.grid{stroke:var(--line)}.limit{stroke:var(--ink);stroke-dasharray:3 3}
.line{fill:none;stroke-width:2.5}
.tie{fill:var(--blue)}.near{fill:var(--amber)}.clear,.hot{fill:var(--red)}.unknown{fill:var(--soft)}
.good{fill:var(--green)}.frame{fill:none;stroke:var(--line)}.frame.missing{stroke-dasharray:3 3}
.c0{stroke:var(--ink)}.c1{stroke:var(--amber);stroke-dasharray:9 3}.c2{stroke:var(--blue)}
.c3{stroke:var(--red);stroke-dasharray:6 3}.c4{stroke:var(--violet);stroke-dasharray:2 2}
.c5{stroke:var(--teal);stroke-dasharray:12 4}.c6{stroke:var(--green);stroke-dasharray:9 3 2 3}
.c7{stroke:var(--pink);stroke-dasharray:4 2}.c8{stroke:var(--amber);stroke-dasharray:2 4}
.c9{stroke:var(--violet)}.c10{stroke:var(--teal);stroke-dasharray:3 3}.c11{stroke:var(--pink);stroke-dasharray:14 3}
details{margin:.6rem 0}section>details{border:1px solid var(--line);border-radius:.4rem;padding:.5rem .8rem}
summary{cursor:pointer;overflow-wrap:anywhere}
.both{display:grid;grid-template-columns:1fr 1fr;gap:1rem}@media(max-width:48rem){.both{grid-template-columns:1fr}}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.5 ui-monospace,monospace;margin:.3rem 0;
unicode-bidi:isolate}
.soft{color:var(--soft);margin:.6rem 0 0}.layers{padding-left:1.2rem}.a{background:var(--a)}.b{background:var(--b)}
mark{color:inherit;background:inherit;outline:2px solid var(--red);outline-offset:1px}
"""


def to_page(report: Report) -> str:
    """What ``--html`` writes. The API key is not in it."""
    return "".join(_pieces(report))


def _pieces(report: Report) -> Iterator[str]:
    title = safe(f"{report.deployment.model} at {report.deployment.url}")
    yield HEAD.format(title=title, style=_STYLE)
    yield f"<h1><bdi>{title}</bdi></h1>\n{parts.facts(report)}{parts.layers(report)}"
    yield "<h2>What to do</h2>\n"
    yield from parts.advice(report)
    yield f"<h2>Findings</h2>\n{parts.findings(report)}"
    yield f"<h2>The ladder</h2>\n{parts.rungs(report)}"
    yield "<h2>Plots</h2>\n<div class=plots>\n"
    for plot in (positions, margins, agreement, batch_map, modes):
        yield from parts.plotted(plot(report))
    yield "</div>\n"
    yield from _examples(report)
    doubts = parts.beside(report)
    yield f"<h2>Doubts</h2>\n{doubts}" if doubts else ""
    yield f"<h2>How to read it</h2>\n{parts.reading()}</body>\n</html>\n"


def _examples(report: Report) -> Iterator[str]:
    several = examples(report)
    yield "<section>\n<h2>Examples of forks</h2>\n"
    if not several:
        yield "<p>No answer differs from the one that it is compared with.</p>\n"
    for example in several:
        yield from shown(report, example)
    yield "</section>\n"
